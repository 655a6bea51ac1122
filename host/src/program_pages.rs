//! Gives back the pages of the program's own file, of which a process at rest needs few.
//!
//! The kernel maps 64 KiB of a program's file around each page fault, and a start runs once through much of what the program has. These
//! pages count as the process's resident memory, and in a cgroup as its active file pages, for as long as nothing else wants them. They
//! are in the page cache and unchanged: what is needed again is mapped again, in one to three microseconds for each 64 KiB, as long as
//! the node has memory for the page cache.

use std::io;

use rustix::mm::{Advice, madvise};

/// Where the kernel tells the mappings of this process, with their memory (proc_pid_smaps(5)).
const MAPPINGS: &str = "/proc/self/smaps";

/// A mapping, as far as it matters here.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mapping<'a> {
    begin: usize,
    end: usize,
    permissions: &'a str,
    file: &'a str,
    /// Resident memory, in KiB.
    resident: u64,
    /// What this process has of its own instead of the file's pages, resident or swapped out, in KiB.
    own: u64,
}

impl Mapping<'_> {
    /// Whether a page that is taken off can be had again as it was: no page of it was ever written.
    fn is_as_in_its_file(&self) -> bool {
        self.own == 0 && !self.permissions.contains('w') && self.permissions.ends_with('p')
    }
}

/// Takes all unchanged pages of the program's file off this process, and answers how much that was, in KiB. What runs meanwhile finds
/// its pages again by page faults.
///
/// # Errors
/// When the process's mappings can't be read, or the kernel refuses.
pub(crate) fn give_back() -> io::Result<u64> {
    let text = std::fs::read_to_string(MAPPINGS)
        .map_err(|error| io::Error::new(error.kind(), format!("{MAPPINGS}: {error}")))?;
    let mut given_back = 0;
    for mapping in of_the_program(&text, (give_back as *const ()).addr()) {
        let (begin, length) = (std::ptr::without_provenance_mut(mapping.begin), mapping.end - mapping.begin);
        // SAFETY: it changes no memory. The page cache takes these pages for unused from now on, before they are taken off, which would
        // take those that were just used for active ones. A kernel before 5.4 does not know it.
        let _ = unsafe { madvise(begin, length, Advice::LinuxCold) };
        // SAFETY: the range is one whole mapping of the program's file, private, not writable, and without a page that differs from the
        // file. The kernel reads a page again from the file when it is next touched, so that all memory stays as it is. Only a breakpoint
        // that a debugger has set since the mappings were read would be lost.
        unsafe { madvise(begin, length, Advice::LinuxDontNeed) }?;
        given_back += mapping.resident;
    }
    Ok(given_back)
}

/// The unchanged mappings of the file in whose code `code` is an address.
fn of_the_program(text: &str, code: usize) -> Vec<Mapping<'_>> {
    let all = mappings(text);
    let program = all.iter().find(|mapping| (mapping.begin..mapping.end).contains(&code)).map(|own| own.file);
    let is_ours = |mapping: &Mapping<'_>| Some(mapping.file) == program && mapping.is_as_in_its_file();
    all.into_iter().filter(is_ours).collect()
}

fn mappings(text: &str) -> Vec<Mapping<'_>> {
    let mut found: Vec<Mapping<'_>> = Vec::new();
    for line in text.lines() {
        if let Some(mapping) = head(line) {
            found.push(mapping);
        } else if let (Some(last), Some((name, kib))) = (found.last_mut(), size(line)) {
            match name {
                "Rss" => last.resident = kib,
                "Anonymous" | "Swap" => last.own += kib,
                _ => {}
            }
        }
    }
    found
}

/// The first line of a mapping: `begin-end permissions offset device inode file`, in which the file's name can have blanks.
fn head(line: &str) -> Option<Mapping<'_>> {
    let (range, rest) = line.split_once(' ')?;
    let (begin, end) = range.split_once('-')?;
    let address = |digits| usize::from_str_radix(digits, 16).ok();
    let mut rest = rest.splitn(5, ' ');
    let permissions = rest.next()?;
    let file = rest.nth(3).unwrap_or_default().trim_start();
    Some(Mapping { begin: address(begin)?, end: address(end)?, permissions, file, ..Mapping::default() })
}

/// A line that tells a size: `Rss:  12 kB`.
fn size(line: &str) -> Option<(&str, u64)> {
    let (name, rest) = line.split_once(':')?;
    Some((name, rest.trim().strip_suffix(" kB")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55557bf51000-55557bfb0000 rw-p 00000000 00:00 0                          [heap]
Rss:                 340 kB
Anonymous:           340 kB
VmFlags: rd wr mr mw me ac
7f504c000000-7f504c56e000 r--p 00000000 fe:00 1234                       /opt/my programs/fairleadd (deleted)
Rss:                1984 kB
Anonymous:             0 kB
7f504c56f000-7f504d78c000 r-xp 0056f000 fe:00 1234                       /opt/my programs/fairleadd (deleted)
Rss:               11996 kB
Anonymous:             0 kB
7f504d78c000-7f504d83d000 r--p 0178c000 fe:00 1234                       /opt/my programs/fairleadd (deleted)
Rss:                 708 kB
Anonymous:           708 kB
7f504d83d000-7f504d844000 rw-p 0183d000 fe:00 1234                       /opt/my programs/fairleadd (deleted)
Rss:                  28 kB
Anonymous:             0 kB
7f504d900000-7f504d901000 r--p 00000000 fe:00 99                         /usr/lib/locale/C.utf8/LC_CTYPE
Rss:                   4 kB
Anonymous:             0 kB
";

    #[test]
    fn only_what_is_as_in_the_programs_own_file_is_given_back() {
        let given_back = of_the_program(SMAPS, 0x7f50_4c60_0000);
        let ranges: Vec<_> = given_back.iter().map(|m| (m.begin, m.end, m.resident)).collect();
        assert_eq!(
            ranges,
            [(0x7f50_4c00_0000, 0x7f50_4c56_e000, 1984), (0x7f50_4c56_f000, 0x7f50_4d78_c000, 11996)]
        );
        assert_eq!(of_the_program(SMAPS, 0x1000), [], "code that is in no file");
    }

    #[test]
    fn a_program_that_has_given_its_pages_back_runs_on() {
        assert!(give_back().unwrap() > 0);
        // Constants, code and formatting are had again.
        assert_eq!(format!("{MAPPINGS:?} {}", 7), "\"/proc/self/smaps\" 7");
        give_back().unwrap();
    }
}
