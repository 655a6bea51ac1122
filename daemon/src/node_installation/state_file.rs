//! The file of the state directory with what the installer has taken over and chosen: our configuration in the conf dir may be taken away
//! by anybody, and what Multus was told went with it.

use std::fs;
use std::path::{Path, PathBuf};

use fairlead_host::files::{self, FileError, failed, read_optional};
use serde_json::{Map, Value};

/// Its file in the state directory.
const FILE: &str = "node-network.json";

/// The key that says that our configuration was taken away because the node was to be left (`install: {cni: absent}`): the node's network
/// may be another one when we come again.
pub(super) const LEFT: &str = "left";

/// The plugin of our configuration as it was written last.
#[derive(Debug)]
pub(super) struct Remembered {
    file: PathBuf,
}

impl Remembered {
    pub(super) fn in_dir(state_dir: &Path) -> Remembered {
        Remembered { file: state_dir.join(FILE) }
    }

    /// What was written last; `None` before the first install. A file that cannot be read is none.
    pub(super) fn plugin(&self) -> Option<Map<String, Value>> {
        let text = match read_optional(&self.file).map_err(failed(&self.file, "read")) {
            Ok(text) => text?,
            Err(error) => {
                tracing::warn!(%error, "what was taken over from Multus is not known any more");
                return None;
            }
        };
        let plugin: Map<String, Value> = serde_json::from_slice(&text).ok()?;
        plugin.get("clusterNetwork").is_some_and(Value::is_string).then_some(plugin)
    }

    /// Notes that the node was left.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn leave(&self) -> Result<(), FileError> {
        let Some(mut plugin) = self.plugin() else { return Ok(()) };
        plugin.insert(LEFT.to_owned(), Value::Bool(true));
        self.keep(&plugin)
    }

    /// Keeps it, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn keep(&self, plugin: &Map<String, Value>) -> Result<(), FileError> {
        let Some(dir) = self.file.parent() else { return Ok(()) };
        let text = Value::Object(plugin.clone()).to_string();
        if read_optional(&self.file).ok().flatten().as_deref() == Some(text.as_bytes()) {
            return Ok(());
        }
        fs::create_dir_all(dir).map_err(failed(dir, "made"))?;
        files::replace(&self.file, text.as_bytes()).map_err(failed(&self.file, "replaced"))
    }
}
