//! Configurations that were read lately: a runtime hands over the same text for pod after pod, and for ADD and DEL.

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_cni::CniError;
use fairlead_cni::config::NetConf;
use parking_lot::Mutex;

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
}
