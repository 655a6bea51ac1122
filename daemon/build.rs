//! Tells the program which revision it was built from: `FAIRLEAD_REVISION` where it is set (an image is built without `.git`), else
//! what `.git` says. Read as files, so that no git is needed; the same tree gives the same program. And has the linker put what a usual
//! call runs in one stretch.

use std::fs;
use std::path::{Path, PathBuf};

/// The number of characters of a revision that are told.
const SHORT: usize = 12;

/// What a usual call runs; made by `usual_path.py`, which says how.
const USUAL_PATH: &str = "usual_path.txt";

fn main() {
    tell_revision();
    if let Err(error) = put_usual_path_together() {
        println!("cargo::error={USUAL_PATH}: {error}");
    }
}

/// Has the linker put the functions of [`USUAL_PATH`] beside each other. They are a ninth of the program's text: in between, each page that
/// is in use, and each line of the processor's caches, has mostly what a call does not need. A name that matches nothing costs nothing.
fn put_usual_path_together() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed={USUAL_PATH}");
    let of_build = |key: &str| std::env::var(key).unwrap_or_default();
    // A program of a debug build is linked often, and never measured.
    if of_build("PROFILE") != "release" {
        return Ok(());
    }
    let mut script = "SECTIONS\n{\n    .usual_path :\n    {\n".to_owned();
    for name in fs::read_to_string(USUAL_PATH)?.lines() {
        script += &match name.ends_with(".o") {
            true => format!("        *{name}(.text .text.*)\n"),
            false => format!("        *(.text.{name} .text.unlikely.{name})\n"),
        };
    }
    script += "    }\n}\nINSERT BEFORE .text;\n";
    let file = Path::new(&of_build("OUT_DIR")).join("usual_path.ld");
    fs::write(&file, script)?;
    println!("cargo::rustc-link-arg-bin=fairleadd=-Wl,-T{}", file.display());
    Ok(())
}

fn tell_revision() {
    println!("cargo::rerun-if-env-changed=FAIRLEAD_REVISION");
    let given = std::env::var("FAIRLEAD_REVISION").ok().filter(|revision| !revision.is_empty());
    let revision = given.or_else(|| of_git(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.git")));
    let short: String =
        revision.unwrap_or_default().chars().filter(char::is_ascii_alphanumeric).take(SHORT).collect();
    let told = if short.is_empty() { "unknown" } else { &short };
    println!("cargo::rustc-env=FAIRLEAD_REVISION={told}");
}

/// The commit that is checked out.
fn of_git(git: &Path) -> Option<String> {
    // In a further work tree `.git` is a file that names the directory.
    let dir = match fs::read_to_string(git) {
        Ok(text) => PathBuf::from(text.strip_prefix("gitdir:")?.trim()),
        Err(_) => git.to_owned(),
    };
    // It has a line for every commit, also where the branch's own file is packed away.
    read(&dir.join("logs/HEAD"));
    let head = read(&dir.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref:").map(str::trim) else { return Some(head) };
    // Branches are of all work trees.
    let common = fs::read_to_string(dir.join("commondir")).map_or(dir.clone(), |text| dir.join(text.trim()));
    read(&common.join(name)).or_else(|| {
        let packed = read(&common.join("packed-refs"))?;
        packed.lines().find_map(|line| line.strip_suffix(name)?.strip_suffix(' ').map(str::to_owned))
    })
}

/// The text of a file, and a new build when it changes.
fn read(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    println!("cargo::rerun-if-changed={}", file.display());
    Some(text.trim().to_owned())
}
