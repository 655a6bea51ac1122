//! Where the kernel prints its messages. That a link was renamed is one of them, and the thread that renames it waits until a console
//! has printed it: a serial line takes most of a millisecond.

use std::fs;

/// The level of what the kernel says of a renamed link (`KERN_INFO`, include/linux/kern_levels.h).
const INFO: u32 = 6;

/// The first console on which a renamed link is told, such as `ttyS0`; `None`: on no one's, or that cannot be read. By `kernel.printk`
/// (Documentation/admin-guide/sysctl/kernel.rst) and `/proc/consoles` (Documentation/filesystems/proc.rst).
pub fn tells_of_renamed_links() -> Option<String> {
    let printk = fs::read_to_string("/proc/sys/kernel/printk").ok()?;
    that_prints(&printk, &fs::read_to_string("/proc/consoles").ok()?)
}

fn that_prints(printk: &str, consoles: &str) -> Option<String> {
    let level: u32 = printk.split_whitespace().next()?.parse().ok()?;
    if level <= INFO {
        return None;
    }
    consoles.lines().find_map(|line| {
        let (name, rest) = line.split_once(char::is_whitespace)?;
        let flags = rest.split_once('(')?.1.split_once(')')?.0;
        // `ttynull` is there where no console is wanted.
        (flags.contains('E') && name != "ttynull").then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_counts_where_it_is_on_and_prints_what_is_for_information() {
        let consoles =
            "tty0                 -WU (      p  )    4:7\nttyS0                -W- (EC  p a)    4:64\n";
        assert_eq!(that_prints("7\t4\t1\t7\n", consoles).as_deref(), Some("ttyS0"));
        assert_eq!(that_prints("15\t4\t1\t7\n", consoles).as_deref(), Some("ttyS0"));
        for (printk, consoles) in [
            ("6\t4\t1\t7\n", consoles),
            ("4\t4\t1\t7\n", consoles),
            ("7\t4\t1\t7\n", "ttyS0                -W- ( C  p a)    4:64\n"),
            ("7\t4\t1\t7\n", "ttynull              --- (EC  p  )  242:0\n"),
            ("7\t4\t1\t7\n", ""),
            ("", consoles),
        ] {
            assert_eq!(that_prints(printk, consoles), None, "{printk:?} {consoles:?}");
        }
    }
}
