//! Where the kernel prints its messages. That a link was renamed is one of them, and the thread that renames it waits until a console
//! has printed it: a serial line takes most of a millisecond.

use std::fs;

/// The level of what the kernel says of a renamed link (`KERN_INFO`, include/linux/kern_levels.h).
const INFO: u32 = 6;

/// The consoles on which a renamed link is told, such as `ttyS0`; `None`: on none, or that cannot be read. By `kernel.printk` and
/// `ignore_loglevel` (Documentation/admin-guide/sysctl/kernel.rst, kernel-parameters.rst) and `/proc/consoles`
/// (Documentation/filesystems/proc.rst).
pub fn tells_of_renamed_links() -> Option<String> {
    let printk = fs::read_to_string("/proc/sys/kernel/printk").ok()?;
    let prints_all = fs::read_to_string("/sys/module/printk/parameters/ignore_loglevel");
    let prints_all = prints_all.is_ok_and(|setting| setting.trim() == "Y");
    that_print(&printk, prints_all, &fs::read_to_string("/proc/consoles").ok()?)
}

fn that_print(printk: &str, prints_all: bool, consoles: &str) -> Option<String> {
    let level: u32 = printk.split_whitespace().next()?.parse().ok()?;
    if level <= INFO && !prints_all {
        return None;
    }
    let slow = consoles.lines().filter_map(|line| {
        let (name, rest) = line.split_once(char::is_whitespace)?;
        let flags = rest.split_once('(')?.1.split_once(')')?.0;
        // N prints by a thread of its own; `ttynull` is there where no console is wanted.
        (flags.contains('E') && !flags.contains('N') && !name.starts_with("ttynull")).then_some(name)
    });
    let slow: Vec<&str> = slow.collect();
    (!slow.is_empty()).then(|| slow.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_counts_where_it_is_on_and_prints_what_is_for_information() {
        let consoles =
            "tty0                 -WU (EC  p  )    4:7\nttyS0                -W- (E   p a)    4:64\n";
        let both = Some("tty0, ttyS0");
        assert_eq!(that_print("7\t4\t1\t7\n", false, consoles).as_deref(), both);
        assert_eq!(that_print("15\t4\t1\t7\n", false, consoles).as_deref(), both);
        assert_eq!(that_print("4\t4\t1\t7\n", true, consoles).as_deref(), both);
        for (printk, consoles) in [
            ("6\t4\t1\t7\n", consoles),
            ("4\t4\t1\t7\n", consoles),
            ("7\t4\t1\t7\n", "ttyS0                -W- ( C  p a)    4:64\n"),
            ("7\t4\t1\t7\n", "ttyS0                -W- (EC Np a)    4:64\n"),
            ("7\t4\t1\t7\n", "ttynull0             --- (EC  p  )  242:0\n"),
            ("7\t4\t1\t7\n", ""),
            ("", consoles),
        ] {
            assert_eq!(that_print(printk, false, consoles), None, "{printk:?} {consoles:?}");
        }
    }
}
