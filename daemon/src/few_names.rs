//! Names in a sentence for a person: a few, and how many more there are.

/// So many are named.
const NAMED: usize = 3;

/// The first names, and how many more there are.
pub(crate) fn a_few_of(names: &[String]) -> String {
    let named = names.get(..NAMED).unwrap_or(names).join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_are_named_and_the_rest_is_counted() {
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let told = [1, 3, 4, 5].map(|count| a_few_of(&names[..count]));
        assert_eq!(told, ["a", "a, b, c", "a, b, c and 1 more", "a, b, c and 2 more"]);
    }
}
