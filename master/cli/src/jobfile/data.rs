//! `[data]` of a job file: the data set that the agents serve to the workers.

use model::options::{CHUNK_BYTES, DataFormat, DataSpec};

use super::Reader;
use crate::keys::Value;

impl Reader {
    /// The data set, as far as it is right; none where the file names none.
    pub(super) fn data(&mut self) -> Option<DataSpec> {
        let keys = ["url", "format", "record_bytes", "chunk"].map(|key| format!("data.{key}"));
        if !self.document.has("data") && !keys.iter().any(|key| self.document.has(key)) {
            return None;
        }
        let remedy = "add url = \"hdfs://cluster/data/train\" or a file:// URL to [data]";
        if !self.document.has("data.url") {
            self.fault("data.url", "is missing", remedy);
        }
        let format = self.data_format();
        let chunk_bytes = match self.document.values.get("data.chunk") {
            Some(Value::Bytes(bytes)) => *bytes,
            Some(_) | None => CHUNK_BYTES,
        };
        Some(DataSpec { url: self.text("data.url").unwrap_or_default(), format, chunk_bytes })
    }

    fn data_format(&mut self) -> DataFormat {
        if !self.document.has("data.format") {
            let remedy = "add format = \"recordio\", or lines, fixed or files, to [data]";
            self.fault("data.format", "is missing", remedy);
        }
        let bytes = self.count("data.record_bytes");
        let sized = self.document.has("data.record_bytes");
        let word = self.text("data.format").unwrap_or_default();
        match (word.as_str(), sized) {
            ("fixed", true) => return DataFormat::Fixed(bytes.unwrap_or(1)),
            ("fixed", false) => self.fault(
                "data.record_bytes",
                "is missing",
                "add record_bytes, the size of each record, to [data]",
            ),
            ("", _) | (_, false) => {}
            (word, true) => self.fault(
                "data.record_bytes",
                format!("stands beside format = {word:?}"),
                "remove it: only fixed records have one size",
            ),
        }
        DataFormat::named(&word, None).unwrap_or(DataFormat::RecordIo)
    }
}
