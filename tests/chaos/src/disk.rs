//! A slow disk for one process: a limit of writes per second on the block device, set by control group.
//!
//! Uses version 2 (`io.max`) where it controls the device, else version 1 (`blkio.throttle`). Without either, the
//! process is stopped and resumed many times a second. That delays its syncs like a bad disk, but everything else too.
//! The output names the method.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const BLKIO: &str = "/sys/fs/cgroup/blkio";
const UNIFIED: &str = "/sys/fs/cgroup";
/// An fsync of etcd's log takes two or three writes.
const WRITES_PER_SECOND: u32 = 12;

/// How a disk is made slow here.
#[derive(Debug, Clone)]
pub(crate) enum SlowDisk {
    /// By this group, with this file and what is written to it.
    Group { folder: PathBuf, file: &'static str, slow: String, well: String },
    /// By stopping and resuming.
    Flicker,
}

impl SlowDisk {
    /// Finds out what works for files in `data`; `name` is the group's.
    pub(crate) fn find(data: &Path, name: &str) -> Self {
        Self::group(data, name).unwrap_or(SlowDisk::Flicker)
    }

    fn group(data: &Path, name: &str) -> Option<Self> {
        let device = whole_disk(fs::metadata(data).ok()?.dev())?;
        let unified = PathBuf::from(UNIFIED);
        let controllers = fs::read_to_string(unified.join("cgroup.controllers")).unwrap_or_default();
        let group = if controllers.split_whitespace().any(|controller| controller == "io") {
            // Already on for the groups below, on most machines; an error shows when the limit is written.
            let _ = fs::write(unified.join("cgroup.subtree_control"), "+io");
            let slow = format!("{device} wiops={WRITES_PER_SECOND}");
            let well = format!("{device} wiops=max");
            SlowDisk::Group { folder: unified.join(name), file: "io.max", slow, well }
        } else {
            let file = "blkio.throttle.write_iops_device";
            let (slow, well) = (format!("{device} {WRITES_PER_SECOND}"), format!("{device} 0"));
            SlowDisk::Group { folder: Path::new(BLKIO).join(name), file, slow, well }
        };
        let SlowDisk::Group { folder, .. } = &group else { return None };
        fs::create_dir(folder).ok()?;
        group.set(true).and_then(|()| group.set(false)).ok()?;
        Some(group)
    }

    pub(crate) fn in_words(&self) -> String {
        match self {
            SlowDisk::Group { file, .. } => format!("{WRITES_PER_SECOND} writes/s ({file})"),
            SlowDisk::Flicker => "stopped and resumed all the time (no control group to be had here)".into(),
        }
    }

    /// Makes the disk slow for this process.
    pub(crate) fn begin(&self, pid: u32) -> std::io::Result<()> {
        let SlowDisk::Group { folder, .. } = self else { return Ok(()) };
        fs::write(folder.join("cgroup.procs"), pid.to_string())?;
        self.set(true)
    }

    /// Lets it go.
    pub(crate) fn end(&self, pid: u32) -> std::io::Result<()> {
        let SlowDisk::Group { folder, .. } = self else { return Ok(()) };
        self.set(false)?;
        // A process that has died meanwhile has left the group by that.
        let _ = fs::write(folder.parent().unwrap_or(folder).join("cgroup.procs"), pid.to_string());
        Ok(())
    }

    fn set(&self, is_slow: bool) -> std::io::Result<()> {
        match self {
            SlowDisk::Group { folder, file, slow, well } => {
                fs::write(folder.join(file), if is_slow { slow } else { well })
            }
            SlowDisk::Flicker => Ok(()),
        }
    }
}

/// Removes the group of a run, whose processes are gone.
pub(crate) fn remove_group(name: &str) {
    for parent in [BLKIO, UNIFIED] {
        let _ = fs::remove_dir(Path::new(parent).join(name));
    }
}

/// `major:minor` of the disk that a device number is, or is a part of.
fn whole_disk(device: u64) -> Option<String> {
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00));
    let entry = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let disk = if entry.join("partition").exists() { entry.parent()?.to_path_buf() } else { entry };
    Some(fs::read_to_string(disk.join("dev")).ok()?.trim().to_owned())
}
