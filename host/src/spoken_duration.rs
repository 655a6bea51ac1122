//! Durations as people say them: in tables, and in sentences about what has lasted for how long.

/// A duration in its largest unit of which it has at least two, and nothing behind that: `3s`, `12m`, `5h`, `9d`.
pub fn spoken(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_said_in_the_largest_unit_of_which_it_has_two() {
        for (seconds, said) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7199, "119m"),
            (7200, "2h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (800_000, "9d"),
        ] {
            assert_eq!(spoken(seconds), said);
        }
    }
}
