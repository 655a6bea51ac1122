//! Has the linker put what a usual call runs in one place: `usual_path.ld` says why.

fn main() {
    let script = format!("{}/usual_path.ld", env!("CARGO_MANIFEST_DIR"));
    println!("cargo::rerun-if-changed={script}");
    let of_target = |key: &str| std::env::var(key).unwrap_or_default();
    // Of other C libraries the functions have other names; they are for tests.
    if of_target("CARGO_CFG_TARGET_ENV") != "musl" {
        return;
    }
    // On x86_64 the C compiler calls the linker, for arm64 it is called itself (`.cargo/config.toml`).
    let prefix = if of_target("CARGO_CFG_TARGET_ARCH") == "aarch64" { "" } else { "-Wl," };
    // No page is made read-only after the start, which is what the separate pages of `relro` are for.
    for argument in [format!("-T{script}"), "-znorelro".to_owned()] {
        println!("cargo::rustc-link-arg-bin=fairlead={prefix}{argument}");
    }
}
