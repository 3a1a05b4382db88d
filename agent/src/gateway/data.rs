//! Reading the job's data set where tasks cannot (section 5.1).

use std::sync::Arc;

use storage::Error;
use storage::dataset::parent;

use super::{Answer, Kind, Request, Service, Trouble, transfer};

/// Most bytes of one answer: a block of an index, or a piece of a record that is larger.
const READ_BYTES_MAX: u64 = 8 << 20;

impl Service {
    /// `read {file, from, bytes, whole}`: bytes of a file of the data set, by its path below the
    /// set's URL; the empty path is the URL itself. With `whole`, also the file's present length,
    /// and no bytes where it has shrunk.
    pub(super) async fn read(&self, request: &Request) -> Result<Answer, Trouble> {
        let refused = |words: &str| Trouble::new(Kind::Refused, words);
        let url = self.wanted.borrow().data.clone();
        let url = url.ok_or_else(|| refused("the job has no data set that is read here"))?;
        let file = request.text("file")?.to_owned();
        let (from, bytes) = (request.number("from")?, request.number("bytes")?);
        if READ_BYTES_MAX < bytes {
            return Err(refused("more bytes than are read at once"));
        }
        let (base, path) = if file.is_empty() {
            let (base, name) = parent(&url).ok_or_else(|| refused("the data set is no file"))?;
            (base.to_owned(), name.to_owned())
        } else {
            (url, file)
        };
        let (gateway, whole) = (Arc::clone(&self.gateway), request.flag("whole"));
        let read = self.gateway.blocking(move || {
            let trouble = |error: Error| transfer::trouble(&error);
            let storage = gateway.storage(&base)?;
            let length = whole.then(|| storage.length(&path)).transpose().map_err(trouble)?;
            if length.is_some_and(|length| length < from.saturating_add(bytes)) {
                return Ok((length, Vec::new()));
            }
            let content = storage.read_range(&path, from, bytes).map_err(trouble)?;
            Ok((length, content))
        });
        let (length, content) = read.await?;
        Ok(Answer::new([("length", length.into())]).with_body(content))
    }
}
