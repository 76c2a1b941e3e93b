//! An append-only log for each partition, shared by all pods. It stands in for Kafka.
//!
//! It is in memory for pods of one process, or a file per partition (one JSON object per line) for pods in processes of
//! their own. It appends every record and compares no epochs, on purpose: it records what pods do, and a log that kept
//! two writers apart would hide that there were two.
//!
//! [`Log::fenced_in_directory`] is the exception: it refuses an epoch that is over, as a production log has to. No
//! process can do without: if it is stopped between its last check of the lease and the write, it writes whenever it
//! resumes. Refused records are written down as well, so nothing is hidden.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use segue_protocol::ids::{Epoch, PartitionId};

use super::clock;
use super::record::LogRecord;

/// The logs of all partitions. Clones share them.
#[derive(Debug, Clone)]
pub struct Log {
    backend: Backend,
}

#[derive(Debug, Clone)]
enum Backend {
    Memory(Arc<RwLock<Vec<Arc<Partition>>>>),
    Directory { folder: Arc<Path>, fenced: bool },
}

type Partition = Mutex<Vec<LogRecord>>;

/// Where fenced logs record what they refused.
const REFUSED: &str = "refused";

/// Records of one partition, and the offset to continue from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// The records.
    pub records: Vec<LogRecord>,
    /// The offset after the last record.
    pub end: u64,
}

impl Log {
    /// Returns logs that live as long as the process.
    pub fn in_memory() -> Self {
        Log { backend: Backend::Memory(Arc::default()) }
    }

    /// Returns logs in files below `directory`, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be created.
    pub fn in_directory(directory: &Path) -> io::Result<Self> {
        Self::open(directory, false)
    }

    /// Returns logs in files that refuse records of an epoch older than the last one that was [claimed](Self::claim).
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be created.
    pub fn fenced_in_directory(directory: &Path) -> io::Result<Self> {
        Self::open(directory, true)
    }

    fn open(directory: &Path, fenced: bool) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        Ok(Log { backend: Backend::Directory { folder: directory.into(), fenced } })
    }

    /// Excludes all earlier epochs: a record that they have not appended yet is refused from now on. Returns an error
    /// if a later epoch has claimed the log. Does nothing if the log is not fenced.
    ///
    /// # Errors
    ///
    /// Fails if a later epoch has claimed the log, or a file cannot be read or written.
    pub fn claim(&self, partition: PartitionId, epoch: Epoch) -> io::Result<()> {
        let Backend::Directory { folder, fenced: true } = &self.backend else { return Ok(()) };
        let file = lock_file(folder, partition)?;
        let fence = fence(folder, partition)?;
        refuse_older(epoch, fence)?;
        if epoch > fence {
            // Renamed into place: a process that dies leaves the old file or the new one.
            let (new, fence) = (folder.join(format!("{partition}.fence.new")), fence_path(folder, partition));
            fs::write(&new, epoch.to_string())?;
            fs::rename(new, fence)?;
        }
        drop(file);
        Ok(())
    }

    /// Returns the refused records of all partitions.
    ///
    /// # Errors
    ///
    /// Fails if the file of refused records cannot be read.
    pub fn refused(&self) -> io::Result<Vec<LogRecord>> {
        let Backend::Directory { folder, .. } = &self.backend else { return Ok(Vec::new()) };
        match File::open(folder.join(REFUSED)) {
            Ok(file) => Ok(read_file(file, 0)?.records),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Appends a record, and sets its `offset` and `appended_at`. Returns it with the offset after it.
    ///
    /// # Errors
    ///
    /// Fails if a later epoch has claimed a fenced log, or a file cannot be read or written.
    pub fn append(&self, mut record: LogRecord) -> io::Result<(LogRecord, u64)> {
        match &self.backend {
            Backend::Memory(_) => {
                let partition = self.partition(record.partition);
                let mut records = lock(&partition);
                record.offset = records.len() as u64;
                record.appended_at = clock::now();
                records.push(record.clone());
                Ok((record, records.len() as u64))
            }
            Backend::Directory { folder, fenced } => {
                let mut file = lock_file(folder, record.partition)?;
                if *fenced && let Err(refusal) = refuse_older(record.epoch, fence(folder, record.partition)?) {
                    let mut refused = OpenOptions::new().append(true).create(true).open(folder.join(REFUSED))?;
                    refused.lock()?;
                    refused.write_all(&line(&record)?)?;
                    return Err(refusal);
                }
                record.offset = file.metadata()?.len();
                record.appended_at = clock::now();
                let line = line(&record)?;
                // One call: a process that dies leaves the whole record or nothing.
                file.write_all(&line)?;
                Ok((record.clone(), record.offset + line.len() as u64))
            }
        }
    }

    /// Returns what was appended from offset `from` on.
    ///
    /// # Errors
    ///
    /// Fails if the partition's file cannot be read.
    pub fn read(&self, partition: PartitionId, from: u64) -> io::Result<Tail> {
        match &self.backend {
            Backend::Memory(_) => {
                let partition = self.partition(partition);
                let records = lock(&partition);
                let from = usize::try_from(from).unwrap_or(usize::MAX).min(records.len());
                Ok(Tail { records: records[from..].to_vec(), end: records.len() as u64 })
            }
            Backend::Directory { folder, .. } => match File::open(path(folder, partition)) {
                Ok(file) => read_file(file, from),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Tail { records: Vec::new(), end: 0 }),
                Err(error) => Err(error),
            },
        }
    }

    /// Returns all records, each partition's in the order of its log.
    ///
    /// # Errors
    ///
    /// Fails if the directory or a file in it cannot be read.
    pub fn read_all(&self) -> io::Result<Vec<LogRecord>> {
        let mut all = Vec::new();
        for partition in self.partitions()? {
            all.append(&mut self.read(partition, 0)?.records);
        }
        Ok(all)
    }

    fn partitions(&self) -> io::Result<Vec<PartitionId>> {
        match &self.backend {
            Backend::Memory(partitions) => Ok(PartitionId::all(read(partitions).len() as u32).collect()),
            Backend::Directory { folder, .. } => {
                let mut found = Vec::new();
                for entry in fs::read_dir(folder)? {
                    let name = entry?.file_name();
                    let number =
                        name.to_str().and_then(|name| name.strip_suffix(".log")).map(str::parse::<PartitionId>);
                    found.extend(number.and_then(Result::ok));
                }
                found.sort_unstable();
                Ok(found)
            }
        }
    }

    fn partition(&self, number: PartitionId) -> Arc<Partition> {
        let Backend::Memory(partitions) = &self.backend else {
            return Arc::default();
        };
        let index = number.index();
        if let Some(partition) = read(partitions).get(index) {
            return partition.clone();
        }
        let mut partitions = partitions.write().unwrap_or_else(PoisonError::into_inner);
        if partitions.len() <= index {
            partitions.resize_with(index + 1, Arc::default);
        }
        partitions[index].clone()
    }
}

fn read(partitions: &RwLock<Vec<Arc<Partition>>>) -> std::sync::RwLockReadGuard<'_, Vec<Arc<Partition>>> {
    partitions.read().unwrap_or_else(PoisonError::into_inner)
}

fn lock(partition: &Partition) -> MutexGuard<'_, Vec<LogRecord>> {
    partition.lock().unwrap_or_else(PoisonError::into_inner)
}

fn path(directory: &Path, partition: PartitionId) -> PathBuf {
    directory.join(format!("{partition}.log"))
}

/// Opens the partition's file, locked until it is closed.
fn lock_file(directory: &Path, partition: PartitionId) -> io::Result<File> {
    let file = OpenOptions::new().append(true).create(true).open(path(directory, partition))?;
    file.lock()?;
    Ok(file)
}

fn line(record: &LogRecord) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    Ok(line)
}

fn fence_path(directory: &Path, partition: PartitionId) -> PathBuf {
    directory.join(format!("{partition}.fence"))
}

/// Returns the last claimed epoch. To be called only while the partition's file is locked.
fn fence(directory: &Path, partition: PartitionId) -> io::Result<Epoch> {
    match fs::read_to_string(fence_path(directory, partition)) {
        Ok(text) => text.parse().map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Epoch::default()),
        Err(error) => Err(error),
    }
}

fn refuse_older(epoch: Epoch, fence: Epoch) -> io::Result<()> {
    if epoch < fence {
        return Err(io::Error::other(format!("epoch {epoch} is over: {fence} has claimed the log")));
    }
    Ok(())
}

fn read_file(mut file: File, from: u64) -> io::Result<Tail> {
    // Only appends hold the lock, so no partial line is visible.
    file.lock_shared()?;
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(from))?;
    let mut lines = BufReader::new(file.take(end.saturating_sub(from)));
    let (mut records, mut offset, mut line) = (Vec::new(), from, String::new());
    loop {
        line.clear();
        let length = lines.read_line(&mut line)?;
        if length == 0 {
            return Ok(Tail { records, end: offset });
        }
        let record: LogRecord = serde_json::from_str(&line)?;
        records.push(LogRecord { offset, ..record });
        offset += length as u64;
    }
}

#[cfg(test)]
mod tests {

    use segue_protocol::ids::{Incarnation, Revision};

    use super::*;

    const I3: Incarnation = Incarnation::registered_at(Revision::new(3));
    const E1: Epoch = Epoch::new(1);
    const P0: PartitionId = PartitionId::new(0);
    const P2: PartitionId = PartitionId::new(2);
    const P3: PartitionId = PartitionId::new(3);

    fn record(partition: PartitionId, request: u64) -> LogRecord {
        LogRecord {
            partition,
            offset: 0,
            epoch: E1,
            pod: "w".into(),
            incarnation: I3,
            request,
            key: "k".into(),
            sequence: request,
            accepted_at: clock::now(),
            appended_at: 0,
            value: "a \"value\"\n".into(),
        }
    }

    fn requests(tail: &Tail) -> Vec<u64> {
        tail.records.iter().map(|record| record.request).collect()
    }

    fn behaves_like_a_log(log: &Log, other: &Log) {
        assert_eq!(log.read(P2, 0).unwrap(), Tail { records: vec![], end: 0 });
        let (_, end) = log.append(record(P2, 1)).unwrap();
        other.append(record(P2, 2)).unwrap();
        log.append(record(P0, 3)).unwrap();
        assert_eq!(requests(&log.read(P2, 0).unwrap()), [1, 2]);
        let tail = log.read(P2, end).unwrap();
        assert_eq!(requests(&tail), [2]);
        assert_eq!(tail.records[0].offset, end);
        assert!(log.read(P2, tail.end).unwrap().records.is_empty());
        let all: Vec<u64> = log.read_all().unwrap().iter().map(|record| record.request).collect();
        assert_eq!(all, [3, 1, 2]);
    }

    #[test]
    fn what_one_pod_appends_the_next_one_reads_in_memory() {
        let log = Log::in_memory();
        behaves_like_a_log(&log, &log.clone());
    }

    #[test]
    fn what_one_pod_appends_the_next_one_reads_from_files() {
        let directory = tempfile::tempdir().unwrap();
        let log = Log::in_directory(directory.path()).unwrap();
        behaves_like_a_log(&log, &Log::in_directory(directory.path()).unwrap());
    }

    #[test]
    fn a_fenced_log_refuses_an_epoch_that_is_over_and_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let [old, new] = [(); 2].map(|()| Log::fenced_in_directory(directory.path()).unwrap());
        let at = |epoch: u64, request| LogRecord { epoch: epoch.into(), ..record(P2, request) };
        old.claim(P2, E1).unwrap();
        old.append(at(1, 1)).unwrap();
        new.claim(P2, Epoch::new(2)).unwrap();
        assert!(old.append(at(1, 2)).is_err());
        assert!(old.claim(P2, E1).is_err());
        new.append(at(2, 3)).unwrap();
        old.append(LogRecord { epoch: E1, ..record(P3, 4) }).unwrap();
        assert_eq!(requests(&new.read(P2, 0).unwrap()), [1, 3]);
        let refused: Vec<u64> = new.refused().unwrap().iter().map(|record| record.request).collect();
        assert_eq!(refused, [2]);
        let unfenced = Log::in_directory(directory.path()).unwrap();
        unfenced.append(at(1, 5)).unwrap();
        assert_eq!(requests(&new.read(P2, 0).unwrap()), [1, 3, 5]);
    }

    #[test]
    fn writers_at_the_same_time_get_offsets_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        for log in [Log::in_memory(), Log::in_directory(directory.path()).unwrap()] {
            std::thread::scope(|scope| {
                for writer in 0..4 {
                    let log = &log;
                    scope.spawn(move || (0..50).for_each(|n| drop(log.append(record(P0, writer * 50 + n)).unwrap())));
                }
            });
            let tail = log.read(P0, 0).unwrap();
            assert_eq!(tail.records.len(), 200);
            assert!(tail.records.is_sorted_by(|a, b| a.offset < b.offset && a.appended_at <= b.appended_at));
        }
    }
}
