//! Replays the kept corpus: seeds, and whatever once broke something.

use std::fs;
use std::path::Path;

#[test]
fn every_kept_input_is_taken_or_refused_without_a_panic() {
    for (name, body) in fairlead_fuzz::TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let mut inputs = 0;
        for file in fs::read_dir(&directory).unwrap() {
            let path = file.unwrap().path();
            eprintln!("{}", path.display()); // the last line names the input that broke it
            body(&fs::read(&path).unwrap());
            inputs += 1;
        }
        assert!(inputs > 0, "{} holds no input", directory.display());
    }
}

#[test]
fn every_cut_and_every_flipped_bit_of_a_seed_is_taken_or_refused_without_a_panic() {
    for (name, body) in fairlead_fuzz::TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        for file in fs::read_dir(&directory).unwrap() {
            let seed = fs::read(file.unwrap().path()).unwrap();
            for at in (0..seed.len()).take(600) {
                body(&seed[..at]);
                let mut flipped = seed.clone();
                flipped[at] ^= 1 << (at % 8);
                body(&flipped);
            }
        }
    }
}
