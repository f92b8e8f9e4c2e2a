//! A disk for tests: calls fail at a chosen step, and a power cut leaves any state that the calls so far allow.
//!
//! What was written to a file without a sync may be there, be missing, be cut short or be zeros. What was done to a directory without a
//! sync may be there or not, each rename and each new name for itself. A sync that fails has had its chance: a later one does not bring
//! back what it lost.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::path::{Component, Path};
use std::rc::Rc;

use rustix::fs::FileType;
use rustix::io::Errno;

use super::{FileSystem, Stat};

/// How a file's unsynced content may look after a power cut: see [`torn`].
const WAYS_TO_TEAR: usize = 4;
/// The number of the root directory.
const ROOT: usize = 0;

/// The disk, as all handles share it.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedDisk(Rc<RefCell<Disk>>);

/// An open file or directory.
#[derive(Debug)]
pub(crate) struct Handle {
    node: usize,
    position: RefCell<usize>,
}

/// What a call is for, as far as a fault cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Looks only.
    Look,
    /// Changes the content of a file.
    Write,
    /// Changes a directory.
    Change,
    /// A sync of a file.
    SyncFile,
    /// A sync of a directory.
    SyncDirectory,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call at this step is refused.
    Refused(usize, Errno),
    /// The call at this step is done all the same, and reported as failed. A write is done by half.
    Done(usize, Errno),
    /// Nothing from this step on is done: the process has been killed.
    Dead(usize),
    /// From this step on everything that changes the disk fails.
    Unwritable(usize, Errno),
}

#[derive(Clone, Debug)]
struct Disk {
    nodes: Vec<Node>,
    steps: Vec<Call>,
    fault: Option<Fault>,
    /// Copies of the disk before each step, where they are wanted.
    snapshots: Option<Vec<Disk>>,
    numbers: u64,
}

#[derive(Clone, Debug)]
enum Node {
    File {
        content: Vec<u8>,
        standing: Standing,
    },
    Directory {
        parent: usize,
        /// As they are seen.
        names: BTreeMap<String, usize>,
        changes: Vec<(Change, Standing)>,
    },
}

/// What happens at once or not at all: names and what they stand for from then on.
type Change = Vec<(String, Option<usize>)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Outlasts a power cut.
    Durable,
    /// Waits for a sync.
    Waiting,
    /// A sync has failed: later ones pass it over.
    Lost,
}

impl SimulatedDisk {
    /// With nothing on it but a root directory.
    pub(crate) fn new() -> Self {
        Self::of(Disk {
            nodes: vec![Node::directory(ROOT)],
            steps: Vec::new(),
            fault: None,
            snapshots: None,
            numbers: 0,
        })
    }

    fn of(disk: Disk) -> Self {
        Self(Rc::new(RefCell::new(disk)))
    }

    /// A disk of its own in the same state, without a fault.
    pub(crate) fn copy(&self) -> Self {
        let mut disk = self.0.borrow().clone();
        (disk.fault, disk.snapshots) = (None, None);
        disk.steps.clear();
        Self::of(disk)
    }

    /// Something goes wrong from now on; steps count from the disk's making or copying.
    pub(crate) fn fail(&self, fault: Fault) {
        self.0.borrow_mut().fault = Some(fault);
    }

    /// Nothing goes wrong any more.
    pub(crate) fn mend(&self) {
        self.0.borrow_mut().fault = None;
    }

    /// The calls so far.
    pub(crate) fn steps(&self) -> Vec<Call> {
        self.0.borrow().steps.clone()
    }

    /// Keeps a copy of the disk before each step from now on.
    pub(crate) fn keep_snapshots(&self) {
        self.0.borrow_mut().snapshots = Some(Vec::new());
    }

    /// The copies since they were last asked for, and the state now.
    pub(crate) fn take_snapshots(&self) -> Vec<Self> {
        let kept = self.0.borrow_mut().snapshots.replace(Vec::new());
        let mut kept: Vec<_> = kept.into_iter().flatten().map(Self::of).collect();
        kept.push(self.copy());
        kept
    }

    /// Every file and directory as it is seen, by path; directories without content.
    pub(crate) fn tree(&self) -> BTreeMap<String, Option<Vec<u8>>> {
        let mut tree = BTreeMap::new();
        self.0.borrow().walk(ROOT, "", &mut tree);
        tree
    }

    /// States that a power cut at this moment may leave: all of them if there are no more than `limit`, else so many of them.
    pub(crate) fn after_power_cuts(&self, limit: usize, random: &mut fastrand::Rng) -> Vec<Self> {
        let disk = self.0.borrow();
        let files = disk.nodes.iter().filter(|node| node.is_torn_file()).count();
        let changes: usize = disk.nodes.iter().map(Node::unsure_changes).sum();
        let count = 1_usize
            .checked_shl(u32::try_from(changes).unwrap_or(u32::MAX))
            .and_then(|count| {
                count.checked_mul(WAYS_TO_TEAR.checked_pow(u32::try_from(files).ok()?)?)
            })
            .unwrap_or(usize::MAX);
        let choices: Vec<usize> = if count <= limit {
            (0..count).collect()
        } else {
            // The extremes are always among them.
            let sample = (2..limit).map(|_| random.usize(0..count));
            sample.chain([0, count - 1]).collect()
        };
        choices
            .into_iter()
            .map(|choice| Self::of(disk.crashed(choice)))
            .collect()
    }

    /// Counts a call, and lets it go wrong if it is to; whether it is to be done all the same is told by `Err(Done)`.
    fn step(&self, call: Call) -> Result<RefMut<'_, Disk>, Stopped<'_>> {
        let mut disk = self.0.borrow_mut();
        if disk.snapshots.is_some() {
            let copy = Disk {
                snapshots: None,
                fault: None,
                ..disk.clone()
            };
            disk.snapshots.get_or_insert_default().push(copy);
        }
        let step = disk.steps.len();
        disk.steps.push(call);
        match disk.fault {
            Some(Fault::Refused(at, error)) if at == step => Err(Stopped::Before(disk, error)),
            Some(Fault::Done(at, error)) if at == step => Err(Stopped::After(disk, error)),
            Some(Fault::Dead(from)) if from <= step => Err(Stopped::Before(disk, Errno::IO)),
            Some(Fault::Unwritable(from, error)) if from <= step && call != Call::Look => {
                match (call, error) {
                    // A full disk has room for names and gives room back; what is on it can be synced.
                    (Call::Change | Call::SyncDirectory, Errno::NOSPC | Errno::DQUOT)
                    // Nothing waits on a read-only disk.
                    | (Call::SyncFile | Call::SyncDirectory, Errno::ROFS) => Ok(disk),
                    _ => Err(Stopped::Before(disk, error)),
                }
            }
            _ => Ok(disk),
        }
    }

    /// Carries out a call on the disk, unless it is to fail.
    fn call<T>(
        &self,
        call: Call,
        act: impl FnOnce(&mut Disk) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match self.step(call) {
            Ok(mut disk) => act(&mut disk),
            Err(Stopped::Before(_, error)) => Err(error),
            Err(Stopped::After(mut disk, error)) => {
                act(&mut disk)?;
                Err(error)
            }
        }
    }
}

/// A call that is reported as failed.
enum Stopped<'a> {
    Before(RefMut<'a, Disk>, Errno),
    After(RefMut<'a, Disk>, Errno),
}

impl Node {
    fn directory(parent: usize) -> Self {
        Self::Directory {
            parent,
            names: BTreeMap::new(),
            changes: Vec::new(),
        }
    }

    fn is_torn_file(&self) -> bool {
        matches!(self, Self::File { standing, .. } if *standing != Standing::Durable)
    }

    fn unsure_changes(&self) -> usize {
        match self {
            Self::File { .. } => 0,
            Self::Directory { changes, .. } => changes
                .iter()
                .filter(|(_, standing)| *standing != Standing::Durable)
                .count(),
        }
    }
}

impl Disk {
    fn names(&self, node: usize) -> Result<&BTreeMap<String, usize>, Errno> {
        match &self.nodes[node] {
            Node::Directory { names, .. } => Ok(names),
            Node::File { .. } => Err(Errno::NOTDIR),
        }
    }

    fn find(&self, directory: usize, name: &str) -> Result<usize, Errno> {
        self.names(directory)?
            .get(name)
            .copied()
            .ok_or(Errno::NOENT)
    }

    fn resolve(&self, path: &Path) -> Result<usize, Errno> {
        path.components().try_fold(ROOT, |at, part| match part {
            Component::Normal(name) => self.find(at, name.to_str().ok_or(Errno::INVAL)?),
            Component::RootDir | Component::CurDir => Ok(at),
            Component::Prefix(_) | Component::ParentDir => Err(Errno::INVAL),
        })
    }

    fn change(&mut self, directory: usize, change: Change) -> Result<(), Errno> {
        let Node::Directory { names, changes, .. } = &mut self.nodes[directory] else {
            return Err(Errno::NOTDIR);
        };
        for (name, node) in &change {
            match node {
                Some(node) => names.insert(name.clone(), *node),
                None => names.remove(name),
            };
        }
        changes.push((change, Standing::Waiting));
        Ok(())
    }

    fn rename(&mut self, directory: usize, from: &str, to: &str) -> Result<(), Errno> {
        let node = self.find(directory, from)?;
        self.change(
            directory,
            vec![(from.to_owned(), None), (to.to_owned(), Some(node))],
        )
    }

    /// Gives everything of a node that waits this standing.
    fn settle(&mut self, node: usize, outcome: Standing) {
        let standings: Vec<&mut Standing> = match &mut self.nodes[node] {
            Node::File { standing, .. } => vec![standing],
            Node::Directory { changes, .. } => {
                changes.iter_mut().map(|(_, standing)| standing).collect()
            }
        };
        for standing in standings {
            if *standing == Standing::Waiting {
                *standing = outcome;
            }
        }
    }

    /// The disk after a power cut: each unsure thing takes its part of `choice`.
    fn crashed(&self, mut choice: usize) -> Self {
        let mut take = |ways: usize| {
            let taken = choice % ways;
            choice /= ways;
            taken
        };
        let nodes = self.nodes.iter().map(|node| match node {
            Node::File { content, standing } => Node::File {
                content: match standing {
                    Standing::Durable => content.clone(),
                    Standing::Waiting | Standing::Lost => torn(content, take(WAYS_TO_TEAR)),
                },
                standing: Standing::Durable,
            },
            Node::Directory {
                parent, changes, ..
            } => {
                let mut left = BTreeMap::new();
                for (change, standing) in changes {
                    if *standing == Standing::Durable || take(2) == 1 {
                        for (name, node) in change {
                            match node {
                                Some(node) => left.insert(name.clone(), *node),
                                None => left.remove(name),
                            };
                        }
                    }
                }
                let all = left
                    .iter()
                    .map(|(name, node)| (name.clone(), Some(*node)))
                    .collect();
                Node::Directory {
                    parent: *parent,
                    names: left,
                    changes: vec![(all, Standing::Durable)],
                }
            }
        });
        Self {
            nodes: nodes.collect(),
            steps: Vec::new(),
            fault: None,
            snapshots: None,
            numbers: self.numbers,
        }
    }

    fn walk(&self, node: usize, path: &str, tree: &mut BTreeMap<String, Option<Vec<u8>>>) {
        match &self.nodes[node] {
            Node::File { content, .. } => {
                tree.insert(path.to_owned(), Some(content.clone()));
            }
            Node::Directory { names, .. } => {
                tree.insert(path.to_owned(), None);
                for (name, node) in names {
                    self.walk(*node, &format!("{path}/{name}"), tree);
                }
            }
        }
    }

    fn stat(&self, node: usize) -> Stat {
        let (kind, mode, size) = match &self.nodes[node] {
            Node::File { content, .. } => (FileType::RegularFile, 0o600, content.len()),
            Node::Directory { .. } => (FileType::Directory, 0o700, 0),
        };
        Stat {
            kind,
            mode,
            size: size as u64,
            uid: rustix::process::geteuid().as_raw(),
        }
    }
}

/// What a power cut leaves of content that was never synced.
fn torn(content: &[u8], way: usize) -> Vec<u8> {
    match way {
        0 => Vec::new(),
        1 => content[..content.len() / 2].to_vec(),
        2 => vec![0; content.len()],
        _ => content.to_vec(),
    }
}

/// How much of so many bytes one call takes: the first one half, so that it is never taken for all.
fn in_two_parts(is_first: bool, count: usize) -> usize {
    if is_first { count.div_ceil(2) } else { count }
}

fn handle(node: usize) -> Handle {
    Handle {
        node,
        position: RefCell::new(0),
    }
}

impl FileSystem for SimulatedDisk {
    type Handle = Handle;

    fn open_directory(&self, path: &Path) -> Result<Handle, Errno> {
        self.call(Call::Look, |disk| {
            let node = disk.resolve(path)?;
            disk.names(node)?;
            Ok(handle(node))
        })
    }

    fn open_parent(&self, directory: &Handle) -> Result<Handle, Errno> {
        self.call(Call::Look, |disk| match disk.nodes[directory.node] {
            Node::Directory { parent, .. } => Ok(handle(parent)),
            Node::File { .. } => Err(Errno::NOTDIR),
        })
    }

    fn make_directory(&self, path: &Path, _: u32) -> Result<(), Errno> {
        self.call(Call::Change, |disk| {
            let parent = disk.resolve(path.parent().ok_or(Errno::EXIST)?)?;
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.ok_or(Errno::INVAL)?.to_owned();
            if disk.find(parent, &name).is_ok() {
                return Err(Errno::EXIST);
            }
            disk.nodes.push(Node::directory(parent));
            disk.change(parent, vec![(name, Some(disk.nodes.len() - 1))])
        })
    }

    fn remove_directory(&self, path: &Path) -> Result<(), Errno> {
        self.call(Call::Change, |disk| {
            let node = disk.resolve(path)?;
            if !disk.names(node)?.is_empty() {
                return Err(Errno::NOTEMPTY);
            }
            let parent = disk.resolve(path.parent().ok_or(Errno::BUSY)?)?;
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.ok_or(Errno::INVAL)?.to_owned();
            disk.change(parent, vec![(name, None)])
        })
    }

    fn lock(&self, _: &Handle) -> Result<(), Errno> {
        self.call(Call::Look, |_| Ok(()))
    }

    fn stat(&self, file: &Handle) -> Result<Stat, Errno> {
        self.call(Call::Look, |disk| Ok(disk.stat(file.node)))
    }

    fn stat_at(&self, directory: &Handle, name: &str) -> Result<Stat, Errno> {
        self.call(Call::Look, |disk| {
            disk.find(directory.node, name).map(|node| disk.stat(node))
        })
    }

    fn open(&self, directory: &Handle, name: &str) -> Result<Handle, Errno> {
        self.call(Call::Look, |disk| {
            disk.find(directory.node, name).map(handle)
        })
    }

    fn create(&self, directory: &Handle, name: &str) -> Result<Handle, Errno> {
        self.call(Call::Change, |disk| {
            if disk.find(directory.node, name).is_ok() {
                return Err(Errno::EXIST);
            }
            disk.nodes.push(Node::File {
                content: Vec::new(),
                standing: Standing::Waiting,
            });
            let node = disk.nodes.len() - 1;
            disk.change(directory.node, vec![(name.to_owned(), Some(node))])?;
            Ok(handle(node))
        })
    }

    fn read(&self, file: &Handle, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.call(Call::Look, |disk| {
            let Node::File { content, .. } = &disk.nodes[file.node] else {
                return Err(Errno::ISDIR);
            };
            let mut position = file.position.borrow_mut();
            let rest = &content[*position..];
            let count = in_two_parts(*position == 0, rest.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            *position += count;
            Ok(count)
        })
    }

    fn write(&self, file: &Handle, bytes: &[u8]) -> Result<usize, Errno> {
        self.call(Call::Write, |disk| {
            let Node::File { content, standing } = &mut disk.nodes[file.node] else {
                return Err(Errno::ISDIR);
            };
            let count = in_two_parts(content.is_empty(), bytes.len());
            content.extend_from_slice(&bytes[..count]);
            if *standing == Standing::Durable {
                *standing = Standing::Waiting;
            }
            Ok(count)
        })
    }

    fn sync(&self, file: &Handle) -> Result<(), Errno> {
        let is_file = matches!(self.0.borrow().nodes[file.node], Node::File { .. });
        let call = if is_file {
            Call::SyncFile
        } else {
            Call::SyncDirectory
        };
        match self.step(call) {
            Ok(mut disk) => disk.settle(file.node, Standing::Durable),
            // An interrupted sync has not been tried, nor has that of a process that is no more.
            Err(Stopped::Before(mut disk, error)) => {
                if error != Errno::INTR && !matches!(disk.fault, Some(Fault::Dead(_))) {
                    disk.settle(file.node, Standing::Lost);
                }
                return Err(error);
            }
            Err(Stopped::After(mut disk, error)) => {
                disk.settle(file.node, Standing::Durable);
                return Err(error);
            }
        }
        Ok(())
    }

    fn rename(&self, directory: &Handle, from: &str, to: &str) -> Result<(), Errno> {
        self.call(Call::Change, |disk| disk.rename(directory.node, from, to))
    }

    fn rename_new(&self, directory: &Handle, from: &str, to: &str) -> Result<(), Errno> {
        self.call(Call::Change, |disk| {
            if disk.find(directory.node, to).is_ok() {
                return Err(Errno::EXIST);
            }
            disk.rename(directory.node, from, to)
        })
    }

    fn unlink(&self, directory: &Handle, name: &str) -> Result<(), Errno> {
        self.call(Call::Change, |disk| {
            disk.find(directory.node, name)?;
            disk.change(directory.node, vec![(name.to_owned(), None)])
        })
    }

    fn names(&self, directory: &Handle, limit: usize) -> Result<Vec<String>, Errno> {
        self.call(Call::Look, |disk| {
            let names = disk.names(directory.node)?;
            Ok(names.keys().take(limit).cloned().collect())
        })
    }

    fn random(&self) -> Result<u64, Errno> {
        self.call(Call::Look, |disk| {
            disk.numbers += 1;
            Ok(disk.numbers)
        })
    }
}
