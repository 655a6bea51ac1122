//! A program of three instructions that ends with status 0: what a spawn costs whatever the program is.
//!
//! The suite writes it itself, because no compiler makes one as small: the header of an ELF file, one segment, and the instructions.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The lengths of an ELF file's header and of a segment's.
const FILE_HEADER: u16 = 64;
const SEGMENT_HEADER: u16 = 56;
/// Where the file is mapped; a multiple of the largest page.
const ADDRESS: u64 = 0x40_0000;
const LARGEST_PAGE: u64 = 0x1_0000;

/// The processor by its number in ELF files (`EM_X86_64`), and `exit_group(0)`: `xor edi, edi`, `mov eax, 231`, `syscall`.
#[cfg(target_arch = "x86_64")]
const PROCESSOR: u16 = 62;
#[cfg(target_arch = "x86_64")]
const INSTRUCTIONS: [u8; 9] = [0x31, 0xff, 0xb8, 231, 0, 0, 0, 0x0f, 0x05];

/// The processor by its number in ELF files (`EM_AARCH64`), and `exit_group(0)`: `mov x0, 0`, `mov x8, 94`, `svc 0`.
#[cfg(target_arch = "aarch64")]
const PROCESSOR: u16 = 183;
#[cfg(target_arch = "aarch64")]
const INSTRUCTIONS: [u8; 12] = [0x00, 0x00, 0x80, 0xd2, 0xc8, 0x0b, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];

/// Writes the program to `path`, executable by everybody.
///
/// # Errors
/// The kernel's.
pub(crate) fn write(path: &Path) -> io::Result<()> {
    fs::write(path, contents())?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

fn contents() -> Vec<u8> {
    let begin = u64::from(FILE_HEADER + SEGMENT_HEADER);
    let length = begin + INSTRUCTIONS.len() as u64;
    let parts: &[&[u8]] = &[
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0", // 64 bits, little-endian
        &2_u16.to_le_bytes(),                     // ET_EXEC
        &PROCESSOR.to_le_bytes(),
        &1_u32.to_le_bytes(), // the version
        &(ADDRESS + begin).to_le_bytes(),
        &u64::from(FILE_HEADER).to_le_bytes(), // where the segment's header is
        &[0; 12],                              // no sections, no flags
        &FILE_HEADER.to_le_bytes(),
        &SEGMENT_HEADER.to_le_bytes(),
        &1_u16.to_le_bytes(), // segments
        &[0; 6],              // no sections
        &1_u32.to_le_bytes(), // PT_LOAD
        &5_u32.to_le_bytes(), // to be read and executed
        &[0; 8],              // the whole file, from its begin
        &ADDRESS.to_le_bytes(),
        &ADDRESS.to_le_bytes(),
        &length.to_le_bytes(),
        &length.to_le_bytes(),
        &LARGEST_PAGE.to_le_bytes(),
        &INSTRUCTIONS,
    ];
    parts.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn it_ends_with_status_0_and_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bare");
        write(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        let output = loop {
            match Command::new(&path).output() {
                // A child of a test beside this one has the file open until it executes its own program.
                Err(e) if e.kind() == io::ErrorKind::ExecutableFileBusy => {
                    thread::sleep(Duration::from_millis(1));
                }
                ended => break ended.unwrap(),
            }
        };
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
}
