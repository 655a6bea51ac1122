//! Configurations that were read lately: a runtime hands over the same text for pod after pod, and for ADD and DEL, whose text
//! has the key `prevResult` beside it.

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_cni::CniError;
use fairlead_cni::config::NetConf;
use parking_lot::Mutex;

use super::attachment_request::OWN_TYPE;
use super::core::executes_ipam;

/// When it is full it is emptied: texts that are never the same again (those with a prevResult) must not fill it up.
const LIMIT: usize = 256;

/// A larger text is read anew each time.
const LARGEST: usize = 16 << 10;

/// Configurations by their text.
#[derive(Debug, Default)]
pub(crate) struct ConfCache {
    read: Mutex<HashMap<String, Arc<NetConf>>>,
}

impl ConfCache {
    /// Reads a configuration; for a removal leniently.
    pub(crate) fn get(&self, text: &str, removal: bool) -> Result<Arc<NetConf>, CniError> {
        if let Some(conf) = self.read.lock().get(text) {
            return Ok(Arc::clone(conf));
        }
        if let Some(conf) = removal.then(|| self.of_its_add(text)).flatten() {
            return Ok(conf);
        }
        let parsed = if removal { NetConf::parse_for_removal(text) } else { NetConf::parse(text) };
        let conf = Arc::new(parsed?);
        // What was read leniently must not be taken for a configuration that an ADD may go by.
        if text.len() <= LARGEST && conf.prev_result.is_none() && conf.valid_attachments.is_none() && !removal
        {
            let mut read = self.read.lock();
            if read.len() >= LIMIT {
                read.clear();
            }
            read.insert(text.to_owned(), Arc::clone(&conf));
        }
        Ok(conf)
    }

    /// The configuration that the ADD had, for a removal that needs no `prevResult`.
    fn of_its_add(&self, text: &str) -> Option<Arc<NetConf>> {
        let of_add = without_prev_result(text)?;
        let conf = self.read.lock().get(&of_add).map(Arc::clone)?;
        // What is executed gets the whole text, and a list hands the result to its plugins.
        (!executes_ipam(&conf) && conf.plugin_type != OWN_TYPE).then_some(conf)
    }
}

/// A text without its first `"prevResult":{…}`, in the form that libcni writes; `None` for any other text.
///
/// It is compared with texts that were read, and never read itself: that a key of an inner object may be meant does no harm.
fn without_prev_result(text: &str) -> Option<String> {
    const KEY: &str = "\"prevResult\":";
    let at = text.find(KEY)?;
    let value = at + KEY.len();
    let (before, after) = (text.get(..at)?, text.get(value + object_length(text.get(value..)?)?..)?);
    match after.strip_prefix(',') {
        Some(after) => Some([before, after].concat()),
        None => Some([before.strip_suffix(',')?, after].concat()),
    }
}

/// The bytes of the object at the start of a text.
fn object_length(text: &str) -> Option<usize> {
    if !text.starts_with('{') {
        return None;
    }
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b'{' if !in_string => depth += 1,
            b'}' if !in_string => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADD: &str = r#"{"cniVersion":"1.0.0","ipam":{"type":"host-local"},"name":"n","type":"macvlan"}"#;

    fn with_prev_result(add: &str, prev: &str) -> String {
        add.replace(r#","type":"m"#, &format!(r#","prevResult":{prev},"type":"m"#))
    }

    fn is_shared(cache: &ConfCache, del: &str, add: &Arc<NetConf>) -> bool {
        Arc::ptr_eq(&cache.get(del, true).unwrap(), add)
    }

    #[test]
    fn a_del_goes_by_what_its_add_has_read_and_its_prev_result_is_not_read() {
        let cache = ConfCache::default();
        let add = cache.get(ADD, false).unwrap();
        for prev in
            [r#"{"ips":[]}"#, "{}", r#"{"dns":{"domain":"}\"{\\"},"ips":[{}]}"#, r#"{"unreadable":]}"#]
        {
            assert!(is_shared(&cache, &with_prev_result(ADD, prev), &add), "{prev}");
        }
        let last = ADD.replace(r#""type":"macvlan"}"#, r#""type":"macvlan","prevResult":{"ips":[]}}"#);
        assert!(is_shared(&cache, &last, &add));
    }

    #[test]
    fn a_del_of_another_text_or_of_what_is_executed_is_read_whole() {
        let cache = ConfCache::default();
        let add = cache.get(ADD, false).unwrap();
        let other = with_prev_result(ADD, r#"{"ips":[]}"#).replace(r#""n""#, r#""m""#);
        assert!(!is_shared(&cache, &other, &add));
        assert_eq!(cache.get(&other, true).unwrap().name, "m");
        assert!(cache.get(&with_prev_result(ADD, "{"), true).is_err(), "it does not end");
        for executed in [ADD.replace("host-local", "dhcp"), ADD.replace("macvlan", "fairlead")] {
            let add = cache.get(&executed, false).unwrap();
            let del = executed.replace(r#","type""#, r#","prevResult":{"ips":[]},"type""#);
            assert!(!is_shared(&cache, &del, &add), "{del}");
            assert!(cache.get(&del, true).unwrap().prev_result.is_some());
        }
        let strict = with_prev_result(ADD, r#"{"ips":[]}"#);
        assert!(cache.get(&strict, false).unwrap().prev_result.is_some(), "CHECK goes by its own");
    }
}
