//! The stream of device lists that a resource's [`Devices`](super::Devices) hands out.

use std::pin::Pin;

use futures_util::{Stream, stream};
use tokio::sync::watch;

use super::Device;

/// Complete lists of devices: the present one first, then every later one. A list that was replaced before it was read is
/// left out.
pub type WatchedDevices = Pin<Box<dyn Stream<Item = Vec<Device>> + Send>>;

/// Makes the stream out of a watched value; `None` stands for "not known yet", and `devices` maps what is known.
pub fn watched<T, F>(mut lists: watch::Receiver<Option<T>>, devices: F) -> WatchedDevices
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> Vec<Device> + Send + 'static,
{
    // The present list counts as a change, so that it is the first one.
    lists.mark_changed();
    Box::pin(stream::unfold((lists, devices), |(mut lists, devices)| async move {
        loop {
            lists.changed().await.ok()?;
            let known = lists.borrow_and_update().as_ref().map(&devices);
            if let Some(known) = known {
                return Some((known, (lists, devices)));
            }
        }
    }))
}
