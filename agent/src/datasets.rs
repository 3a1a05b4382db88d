//! `optimus-agent index-data` and `import-data`: data sets by hand, without a daemon.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use model::options::{CHUNK_BYTES_MAX, DataFormat, DataSpec};
use model::units::parse_bytes;
use storage::HdfsSettings;
use storage::dataset::{
    Destination, Index, LocalDestination, LocalSource, Source, StoredDestination, StoredSource,
    import, index_of,
};

use crate::task::environment::local_path;

/// How a data set is cut.
#[derive(Debug, Args)]
pub(crate) struct Cut {
    /// What a record is: recordio (MXNet's), lines, fixed (with --record-bytes), or files.
    #[arg(long, value_name = "FORMAT")]
    format: String,
    /// Bytes of each record, with --format fixed.
    #[arg(long, value_name = "BYTES")]
    record_bytes: Option<u32>,
    /// About how large a chunk is.
    #[arg(long, value_name = "SIZE", default_value = "128MiB")]
    chunk: String,
}

/// Arguments of `index-data`.
#[derive(Debug, Args)]
pub(crate) struct IndexArguments {
    /// A folder or a file: a path, file:// or hdfs://.
    source: String,
    #[command(flatten)]
    cut: Cut,
}

/// Arguments of `import-data`.
#[derive(Debug, Args)]
pub(crate) struct ImportArguments {
    /// A folder or a file: a path, file:// or hdfs://.
    source: String,
    /// A folder that is missing or empty.
    destination: String,
    #[command(flatten)]
    cut: Cut,
    /// Copies of each block, on HDFS.
    #[arg(long, value_name = "COPIES", default_value_t = 2)]
    replication: u32,
}

impl Cut {
    fn spec(&self, url: &str) -> Result<DataSpec> {
        let Some(format) = DataFormat::named(&self.format, self.record_bytes) else {
            bail!(
                "--format {}: choose recordio, lines, files, or fixed, which alone needs \
                 --record-bytes",
                self.format
            );
        };
        let chunk_bytes = parse_bytes(&self.chunk).context("--chunk")?;
        if !(1..=CHUNK_BYTES_MAX).contains(&chunk_bytes) {
            bail!("--chunk {}: give at most {CHUNK_BYTES_MAX} bytes", self.chunk);
        }
        Ok(DataSpec { url: url.to_owned(), format, chunk_bytes })
    }
}

/// Prints the index of a data set: its own where it was imported.
///
/// # Errors
/// Where it is damaged, empty or not there.
pub(crate) fn index(arguments: &IndexArguments, hdfs: &HdfsSettings) -> Result<()> {
    let spec = arguments.cut.spec(&arguments.source)?;
    let source = source(&arguments.source, hdfs)?;
    let index = index_of(&*source, &spec).map_err(|error| anyhow!(storage::chain(&error)))?;
    let mut output = std::io::stdout().lock();
    output.write_all(&index.encode()).and_then(|()| output.flush()).context("cannot print it")
}

/// Copies a data set in chunks, and says what came of it.
///
/// # Errors
/// Where the source is damaged, or the destination not empty or not writable.
pub(crate) fn import_set(arguments: &ImportArguments, hdfs: &HdfsSettings) -> Result<()> {
    let spec = arguments.cut.spec(&arguments.source)?;
    let source = source(&arguments.source, hdfs)?;
    let mut destination =
        destination(&arguments.destination, arguments.replication, spec.chunk_bytes, hdfs)?;
    let imported = import(&*source, spec.format, spec.chunk_bytes, &mut *destination);
    let index: Index = imported.map_err(|error| anyhow!(storage::chain(&error)))?;
    let url = destination.url("");
    let (chunks, records, bytes) = (index.chunks.len(), index.records(), index.bytes());
    let mut output = std::io::stdout().lock();
    writeln!(output, "{url}: {records} records in {chunks} chunks, {bytes} bytes")
        .and_then(|()| {
            writeln!(output, "name it in a job's [data] with format = \"{}\"", index.format.name())
        })
        .context("cannot print what was imported")
}

fn source(place: &str, hdfs: &HdfsSettings) -> Result<Box<dyn Source>> {
    if is_remote(place) {
        let found = StoredSource::open(place, hdfs);
        return Ok(Box::new(found.map_err(|error| anyhow!(storage::chain(&error)))?));
    }
    Ok(Box::new(LocalSource::new(local(place)?)))
}

fn destination(
    place: &str,
    replication: u32,
    chunk_bytes: u64,
    hdfs: &HdfsSettings,
) -> Result<Box<dyn Destination>> {
    if is_remote(place) {
        let opened = StoredDestination::open(place, hdfs, replication, chunk_bytes);
        return Ok(Box::new(opened.map_err(|error| anyhow!(storage::chain(&error)))?));
    }
    Ok(Box::new(LocalDestination::new(local(place)?)))
}

fn is_remote(place: &str) -> bool {
    place.starts_with("hdfs://")
}

/// A path, or the path of a file URL.
fn local(place: &str) -> Result<PathBuf> {
    if place.contains("://") {
        return local_path(place).map_err(|words| anyhow!(words));
    }
    std::path::absolute(place).with_context(|| place.to_owned())
}
