//! What an agent does with its state, with every fault and every power cut at every step, on a simulated disk.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use rustix::io::Errno;

use super::*;
use crate::clock::from_unix_seconds;
use crate::keys::KeyType;
use crate::store::Purpose;
use crate::store::disk::simulated::{Call, Fault, SimulatedDisk};
use crate::testing::certificates::Ca;

/// Names the sample where there are more crash states than are looked at.
const SEED: u64 = 2024;
/// Of so many states after one power cut all are looked at; of more, so many of them.
const MAX_CRASH_STATES: usize = 256;
/// The same where something else has gone wrong before.
const MAX_CRASH_STATES_AFTER_A_FAULT: usize = 6;
/// What disks say.
const ERRORS: [Errno; 5] = [
    Errno::NOSPC,
    Errno::ROFS,
    Errno::IO,
    Errno::DQUOT,
    Errno::INTR,
];

type Tree = BTreeMap<String, Option<Vec<u8>>>;

/// The public keys by slot.
type PublicKeys = BTreeMap<KeySlot, Vec<u8>>;

/// One thing that the agent has done.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// The process starts.
    Load,
    Key(KeySlot, usize),
    Svid(usize),
    Bundle(usize),
    Bootstrap(i64),
    Delete,
}
use Act::{Bootstrap, Bundle, Delete, Key, Load, Svid};
use KeySlot::{A, B};

/// What an agent does from one start on; each list goes on with the disk that the one before left.
const LIVES: [&[Act]; 5] = [
    // The first attestation, as attestor and bootstrap do it.
    &[Load, Bootstrap(1), Key(A, 0), Svid(0), Bundle(0)],
    // A rotation by attestation, a renewal, and one that repeats what is there.
    &[
        Load,
        Key(B, 1),
        Svid(1),
        Bundle(1),
        Key(A, 2),
        Svid(2),
        Svid(2),
    ],
    // A new bundle, then the server is not known any more.
    &[Load, Bundle(0), Bootstrap(1), Bootstrap(2), Bundle(1)],
    // Evicted, and attested again.
    &[Load, Delete, Key(B, 0), Svid(0)],
    // Two attempts that came to nothing, then one that did not.
    &[Load, Key(A, 1), Key(A, 2), Key(A, 1), Svid(1)],
];

/// Certificates and keys, and what has been read from which disk.
struct World {
    config: StoreConfig,
    clock: Clock,
    keys: Vec<Arc<PrivateKey>>,
    chains: Vec<Vec<Certificate>>,
    bundles: Vec<Vec<Certificate>>,
    loaded: HashMap<Tree, (AgentData, PublicKeys)>,
    random: fastrand::Rng,
}

/// What may be on disk: the last that was acknowledged, and what has been tried since.
#[derive(Clone, Debug, Default)]
struct Allowed {
    data: Vec<AgentData>,
    keys: Vec<PublicKeys>,
}

/// An agent's store, and what is to be on its disk.
struct Agent {
    disk: SimulatedDisk,
    state: Option<State<SimulatedDisk>>,
    allowed: Allowed,
}

impl World {
    fn new() -> Self {
        let from = from_unix_seconds(1_790_000_000);
        let until = from_unix_seconds(1_790_003_600);
        let cas = [(); 2].map(|()| Ca::new(from));
        let keys: Vec<_> = (0..3)
            .map(|_| Arc::new(PrivateKey::generate(KeyType::EcP256).unwrap()))
            .collect();
        let chain =
            |key| cas[0].chain_for_key(key, "spiffe://domain.test/spire/agent/x", from, until);
        Self {
            config: StoreConfig {
                data_dir: PathBuf::from("/var/lib/agent"),
                keys_dir: Some(PathBuf::from("/var/lib/keys")),
            },
            clock: Clock::virtual_from(from),
            chains: keys.iter().map(|key| chain(key)).collect(),
            bundles: cas
                .iter()
                .map(|ca| vec![ca.certificate().clone()])
                .collect(),
            keys,
            loaded: HashMap::new(),
            random: fastrand::Rng::with_seed(SEED),
        }
    }

    /// What a new process finds.
    fn load(&mut self, disk: &SimulatedDisk) -> (AgentData, PublicKeys) {
        let tree = disk.tree();
        if let Some(loaded) = self.loaded.get(&tree) {
            return loaded.clone();
        }
        let disk = disk.copy();
        let (state, set_aside) = State::load(&disk, &self.config, &self.clock).unwrap();
        assert_eq!(set_aside, [], "{:?}", tree.keys());
        let names = disk.tree();
        let known = ["/var/lib/agent/agent-data.json", "/var/lib/keys/keys.json"];
        let left: Vec<_> = names
            .iter()
            .filter(|(path, content)| content.is_some() && !known.contains(&path.as_str()))
            .collect();
        assert!(left.is_empty(), "left over: {left:?}");
        let loaded = (state.data.clone(), public(&state.keys));
        self.loaded.insert(tree, loaded.clone());
        loaded
    }

    /// Fails unless a new process finds one of the states that are allowed, whole.
    fn check(&mut self, disk: &SimulatedDisk, allowed: &Allowed, when: &dyn std::fmt::Debug) {
        let (data, keys) = self.load(disk);
        assert!(allowed.data.contains(&data), "{when:?}: {data:?}");
        assert!(allowed.keys.contains(&keys), "{when:?}: {keys:?}");
        let has_key = |leaf: &Certificate| keys.values().any(|key| key == leaf.public_key_der());
        assert!(
            data.svid.first().is_none_or(has_key),
            "{when:?}: an SVID without its key"
        );
    }

    fn check_power_cuts(
        &mut self,
        disk: &SimulatedDisk,
        allowed: &Allowed,
        limit: usize,
        when: &dyn std::fmt::Debug,
    ) {
        for crashed in disk.after_power_cuts(limit, &mut self.random) {
            self.check(&crashed, allowed, when);
        }
    }

    fn check_after_fault(&mut self, agent: &Agent, when: &dyn std::fmt::Debug) {
        self.check(&agent.disk, &agent.allowed, when);
        let limit = MAX_CRASH_STATES_AFTER_A_FAULT;
        self.check_power_cuts(&agent.disk, &agent.allowed, limit, when);
    }

    /// The disks that the lives start with, and those lives.
    fn lives(&mut self) -> Vec<(SimulatedDisk, Allowed, &'static [Act])> {
        let disk = SimulatedDisk::new();
        let mut agent = Agent::new(disk, Allowed::nothing());
        let mut lives = Vec::new();
        for acts in LIVES {
            lives.push((agent.disk.copy(), agent.allowed.clone(), acts));
            for act in acts {
                agent.act(self, *act).unwrap();
            }
        }
        lives
    }
}

impl Allowed {
    fn nothing() -> Self {
        Self {
            data: vec![AgentData::default()],
            keys: vec![PublicKeys::new()],
        }
    }
}

impl Agent {
    fn new(disk: SimulatedDisk, allowed: Allowed) -> Self {
        Self {
            disk,
            state: None,
            allowed,
        }
    }

    /// Has one thing done. What it is to bring is allowed from the first step on, and alone once it is acknowledged.
    fn act(&mut self, world: &World, act: Act) -> Result<(), StoreError> {
        if let Load = act {
            self.state = None;
            let (state, set_aside) = State::load(&self.disk, &world.config, &world.clock)?;
            assert_eq!(set_aside, []);
            let (data, keys) = (state.data.clone(), public(&state.keys));
            assert!(self.allowed.data.contains(&data), "{data:?}");
            assert!(self.allowed.keys.contains(&keys), "{keys:?}");
            self.state = Some(state);
            return Ok(());
        }
        let state = self.state.as_mut().unwrap();
        let (mut data, mut keys) = (state.data.clone(), public(&state.keys));
        match act {
            Load => {}
            Key(slot, key) => {
                keys.insert(slot, world.keys[key].public_key_der().to_vec());
            }
            Svid(number) => {
                data.svid = world.chains[number].clone();
                data.reattestable = true;
                data.attested();
            }
            Bundle(number) => data.bundle = world.bundles[number].clone(),
            Bootstrap(attempts) => data.bootstrap = bootstrap(attempts),
            Delete => {
                data.svid.clear();
                data.reattestable = false;
            }
        }
        self.allowed.data.push(data.clone());
        self.allowed.keys.push(keys.clone());
        let (data_dir, keys_dir) = (&world.config.data_dir, world.config.keys_dir.as_ref());
        match act {
            Load => {}
            Key(slot, key) => {
                state.save_key(keys_dir.unwrap(), slot, Arc::clone(&world.keys[key]))?;
            }
            Svid(number) => state.save_svid(data_dir, world.chains[number].clone(), true, None)?,
            Bundle(number) => state.save_bundle(data_dir, world.bundles[number].clone())?,
            Bootstrap(attempts) => state.save_bootstrap(data_dir, bootstrap(attempts))?,
            Delete => state.delete_svid(data_dir)?,
        }
        // Each act writes one of the two files and acknowledges that one.
        if let Key(..) = act {
            self.allowed.keys = vec![keys];
        } else {
            self.allowed.data = vec![data];
        }
        Ok(())
    }

    /// What was loaded is taken for stored from now on.
    fn trust_what_was_loaded(&mut self) {
        let state = self.state.as_ref().unwrap();
        self.allowed = Allowed {
            data: vec![state.data.clone()],
            keys: vec![public(&state.keys)],
        };
    }
}

fn public(keys: &Keys) -> PublicKeys {
    keys.iter()
        .map(|(slot, key)| (*slot, key.public_key_der().to_vec()))
        .collect()
}

fn bootstrap(attempts: i64) -> BootstrapState {
    BootstrapState {
        purpose: Some(Purpose::Rebootstrap),
        started: Some(from_unix_seconds(1_790_000_000)),
        attempts,
    }
}

/// The calls of a life in which nothing goes wrong.
fn calls(world: &World, disk: &SimulatedDisk, allowed: &Allowed, acts: &[Act]) -> Vec<Call> {
    let mut agent = Agent::new(disk.copy(), allowed.clone());
    for act in acts {
        agent.act(world, *act).unwrap();
    }
    agent.disk.steps()
}

/// Everything that can go wrong with one call.
fn faults(step: usize, call: Call) -> Vec<Fault> {
    let refused = ERRORS.map(|error| Fault::Refused(step, error));
    let done = [Errno::IO, Errno::INTR].map(|error| Fault::Done(step, error));
    match call {
        Call::Look => vec![
            Fault::Refused(step, Errno::IO),
            Fault::Refused(step, Errno::INTR),
        ],
        // An interrupted write has written nothing.
        Call::Write => [&refused[..], &done[..1]].concat(),
        Call::Change | Call::SyncFile | Call::SyncDirectory => [&refused[..], &done].concat(),
    }
}

/// Whether the new file may be in place though its write has failed.
fn may_be_replaced(call: Call, fault: Fault) -> bool {
    call == Call::SyncDirectory || (call == Call::Change && matches!(fault, Fault::Done(..)))
}

#[test]
fn a_power_cut_at_any_step_leaves_what_was_acknowledged() {
    let mut world = World::new();
    for (disk, allowed, acts) in world.lives() {
        let mut agent = Agent::new(disk, allowed);
        agent.disk.keep_snapshots();
        for act in acts {
            let mut during = agent.allowed.clone();
            agent.act(&world, *act).unwrap();
            during.data.extend(agent.allowed.data.clone());
            during.keys.extend(agent.allowed.keys.clone());

            let mut snapshots = agent.disk.take_snapshots();
            let after = snapshots.pop().unwrap();
            for (step, before) in snapshots.iter().enumerate() {
                world.check_power_cuts(before, &during, MAX_CRASH_STATES, &(act, step));
            }
            world.check_power_cuts(
                &after,
                &agent.allowed.clone(),
                MAX_CRASH_STATES,
                &(act, "after"),
            );
        }
    }
}

#[test]
fn a_fault_at_any_step_costs_nothing_and_the_next_try_succeeds() {
    let mut world = World::new();
    for (disk, allowed, acts) in world.lives() {
        for (step, call) in calls(&world, &disk, &allowed, acts).into_iter().enumerate() {
            for fault in faults(step, call) {
                let when = (acts, step, call, fault);
                let mut agent = Agent::new(disk.copy(), allowed.clone());
                agent.disk.fail(fault);
                for act in acts {
                    let before = agent.allowed.clone();
                    if agent.act(&world, *act).is_err() {
                        let now = if may_be_replaced(call, fault) {
                            agent.allowed.clone()
                        } else {
                            before
                        };
                        world.check(&agent.disk, &now, &when);
                        world.check_after_fault(&agent, &when);
                        agent.act(&world, *act).expect("the disk is mended");
                    }
                    // Until the fault has struck it is the life of the test above.
                    if agent.disk.steps().len() > step {
                        world.check_after_fault(&agent, &when);
                    }
                }
            }
        }
    }
}

#[test]
fn what_a_start_finds_after_a_kill_at_any_step_outlasts_a_power_cut() {
    let mut world = World::new();
    for (disk, allowed, acts) in world.lives() {
        let steps = calls(&world, &disk, &allowed, acts).len();
        for step in 0..steps {
            let mut agent = Agent::new(disk.copy(), allowed.clone());
            agent.disk.fail(Fault::Dead(step));
            let killed_in = acts.iter().position(|act| agent.act(&world, *act).is_err());
            agent.disk.mend();

            agent.act(&world, Load).unwrap();
            agent.trust_what_was_loaded();

            let when = (acts, step);
            world.check_after_fault(&agent, &when);
            for act in &acts[killed_in.unwrap_or(acts.len())..] {
                agent.act(&world, *act).unwrap();
                world.check_after_fault(&agent, &when);
            }
        }
    }
}

#[test]
fn a_disk_that_fills_up_or_becomes_read_only_at_any_step_keeps_its_files() {
    let mut world = World::new();
    for (disk, allowed, acts) in world.lives() {
        let steps = calls(&world, &disk, &allowed, acts).len();
        for step in 0..steps {
            for error in [Errno::NOSPC, Errno::ROFS] {
                let when = (acts, step, error);
                let mut agent = Agent::new(disk.copy(), allowed.clone());
                agent.disk.fail(Fault::Unwritable(step, error));
                for act in acts {
                    if agent.act(&world, *act).is_err() {
                        // Again and again, as the agent does.
                        agent.act(&world, *act).unwrap_err();
                        world.check_after_fault(&agent, &when);
                        agent.disk.mend();
                        agent.act(&world, *act).expect("the disk is mended");
                        world.check_after_fault(&agent, &when);
                    }
                }
            }
        }
    }
}

#[test]
fn a_start_on_a_full_or_read_only_disk_serves_what_is_stored() {
    let mut world = World::new();
    for (disk, allowed, acts) in world.lives() {
        let is_first = allowed.data[0].svid.is_empty();
        for error in [Errno::NOSPC, Errno::ROFS] {
            let mut agent = Agent::new(disk.copy(), allowed.clone());
            agent.disk.fail(Fault::Unwritable(0, error));

            let started = agent.act(&world, Load);

            assert_eq!(
                started.is_err(),
                is_first && error == Errno::ROFS,
                "{acts:?}"
            );
            if let Err(error) = started {
                assert!(error.to_string().contains("/var/lib"), "{error}");
            }
            world.check(&agent.disk, &allowed, &(acts, error));
        }
    }
}

#[test]
fn an_interrupted_write_or_sync_is_taken_up_again() {
    let mut world = World::new();
    for (disk, allowed, acts) in world.lives() {
        for (step, call) in calls(&world, &disk, &allowed, acts).into_iter().enumerate() {
            if !matches!(call, Call::Write | Call::SyncFile | Call::SyncDirectory) {
                continue;
            }
            let mut agent = Agent::new(disk.copy(), allowed.clone());
            agent.disk.fail(Fault::Refused(step, Errno::INTR));

            for act in acts {
                assert_eq!(agent.act(&world, *act), Ok(()), "{act:?} {step}");
            }
        }
    }
}
