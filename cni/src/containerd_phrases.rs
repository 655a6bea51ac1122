//! Words that containerd reads in the error of a DEL as "it is gone already", and so as success.
//!
//! containerd (its library go-cni) searches the text of the error for them, goes on as if the network were removed, and never
//! repeats the DEL. So the text of a failed DEL must not contain them. This is pure text: whoever writes an error that can be
//! the answer to a DEL passes it through here.

/// Each phrase that containerd looks for, and a shorter word that says the same.
const PHRASES: [(&str, &str); 2] = [("not found", "absent"), ("no such file or directory", "missing")];

/// The same text with those phrases, in upper or lower case, said in other words.
pub fn avoid_containerd_phrases(text: &str) -> String {
    let mut out = text.to_owned();
    for (phrase, instead) in PHRASES {
        // A replacement can make a phrase out of what surrounds it ("not not found found"), so each round searches from the beginning.
        // It ends because every replacement is shorter; ASCII keeps its length in lower case, so the position is right.
        while let Some(at) = out.to_ascii_lowercase().find(phrase) {
            out.replace_range(at..at + phrase.len(), instead);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phrase_is_replaced_in_any_case_and_nothing_else_is() {
        assert_eq!(avoid_containerd_phrases("link Not Found"), "link absent");
        assert_eq!(avoid_containerd_phrases("open /x: No such file or directory"), "open /x: missing");
        assert_eq!(avoid_containerd_phrases("not not found found"), "not absent found");
        assert_eq!(avoid_containerd_phrases("nothing was found"), "nothing was found");
    }
}
