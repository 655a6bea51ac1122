//! The names that kubelet takes for resources of other vendors (Kubernetes, `IsExtendedResourceName`). Under another it never
//! registers one.

/// A name that kubelet does not take for a resource.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name that kubelet takes for a resource: a domain in small letters, /, and at most 63 letters, digits, - _ . \
     that begin and end with a letter or digit, as intel.com/radio"
)]
pub struct BadResourceName(String);

/// Refuses what kubelet does not take for the name of a resource, prefix and all.
///
/// # Errors
/// With the name that is refused.
pub fn check_resource_name(name: &str) -> Result<(), BadResourceName> {
    match is_resource(name) {
        true => Ok(()),
        false => Err(BadResourceName(name.to_owned())),
    }
}

fn is_resource(name: &str) -> bool {
    let plain = |text: &str, more: &[char], small: bool| {
        let is_letter =
            |c: char| c.is_ascii_digit() || c.is_ascii_lowercase() || (!small && c.is_ascii_uppercase());
        text.starts_with(is_letter)
            && text.ends_with(is_letter)
            && text.chars().all(|c| is_letter(c) || more.contains(&c))
    };
    let Some((domain, own)) = name.split_once('/') else { return false };
    let longest = 253 - "requests.".len(); // quotas put that before it
    let is_domain = domain.len() <= longest && domain.split('.').all(|label| plain(label, &['-'], true));
    let is_taken = name.contains("kubernetes.io/") || name.starts_with("requests.");
    is_domain && !is_taken && own.len() <= 63 && plain(own, &['-', '_', '.'], false)
}
