use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use actix::Addr;
use tokio::task::JoinSet;

use super::unix::{UnixAttestor, UnixConfig};
use super::*;

/// Counts its runs and answers when told to.
struct Fake {
    name: &'static str,
    runs: Rc<Cell<usize>>,
    answer: Box<dyn Fn() -> AttestorFuture>,
}

impl WorkloadAttestor for Fake {
    fn name(&self) -> &'static str {
        self.name
    }

    fn attest(&self, _: Arc<Peer>) -> AttestorFuture {
        self.runs.set(self.runs.get() + 1);
        (self.answer)()
    }
}

fn fake(
    name: &'static str,
    answer: impl Fn() -> AttestorFuture + 'static,
) -> (Rc<dyn WorkloadAttestor>, Rc<Cell<usize>>) {
    let runs = Rc::new(Cell::new(0));
    (
        Rc::new(Fake {
            name,
            runs: Rc::clone(&runs),
            answer: Box::new(answer),
        }),
        runs,
    )
}

fn found(name: &'static str, value: &str) -> Vec<Selector> {
    vec![Selector::new(name, value).unwrap()]
}

/// Answers after a while.
fn slow(name: &'static str, after: Duration) -> (Rc<dyn WorkloadAttestor>, Rc<Cell<usize>>) {
    fake(name, move || {
        Box::pin(async move {
            tokio::time::sleep(after).await;
            Ok(found(name, "x"))
        })
    })
}

fn failing(name: &'static str) -> (Rc<dyn WorkloadAttestor>, Rc<Cell<usize>>) {
    fake(name, || {
        Box::pin(async { Err(AttestorError::Failed("no luck".to_owned())) })
    })
}

fn peer_of(pid: u32) -> Arc<Peer> {
    let pid = i32::try_from(pid).unwrap();
    let process = ProcessDir::open(Path::new(PROC), pid).unwrap();
    let status = process.status().unwrap();
    let pidfd = rustix::process::pidfd_open(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::PidfdFlags::empty(),
    );
    Arc::new(Peer {
        pid,
        uid: status.uid,
        gid: status.gid,
        start_time: start_time_of(pid),
        pidfd: pidfd.ok(),
    })
}

fn this_process() -> Arc<Peer> {
    peer_of(std::process::id())
}

/// Field 22 of `/proc/PID/stat`, of a process without parentheses in its name.
fn start_time_of(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, behind_name) = text.rsplit_once(')').unwrap();
    behind_name
        .split_ascii_whitespace()
        .nth(19)
        .unwrap()
        .parse()
        .unwrap()
}

/// A process that lives until it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start(program: &Path) -> Self {
        let mut command = Command::new(program);
        command
            .arg("1000")
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        // `spawn` returns once the program itself runs.
        Self(command.spawn().unwrap())
    }

    fn peer(&self) -> Arc<Peer> {
        peer_of(self.0.id())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn sleep_program() -> PathBuf {
    ["/bin/sleep", "/usr/bin/sleep"]
        .iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
        .unwrap()
}

/// A program of its own that no other test runs.
fn copy_of_sleep(directory: &Path, name: &str) -> PathBuf {
    let program = directory.join(name);
    std::fs::copy(std::fs::canonicalize(sleep_program()).unwrap(), &program).unwrap();
    program
}

fn start(attestors: Vec<Rc<dyn WorkloadAttestor>>) -> Addr<Selectors> {
    Selectors::new(attestors, Clock::virtual_from(SystemTime::UNIX_EPOCH)).start()
}

fn unix(config: UnixConfig) -> Addr<Selectors> {
    start(vec![Rc::new(UnixAttestor::new(config, Clock::system()))])
}

async fn attest(selectors: &Addr<Selectors>, peer: &Arc<Peer>) -> Answer {
    selectors
        .send(AttestWorkload {
            peer: Arc::clone(peer),
        })
        .await
        .unwrap()
}

fn texts(selectors: &SelectorSet) -> Vec<String> {
    selectors.iter().map(ToString::to_string).collect()
}

fn hash_of(path: &Path) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, &std::fs::read(path).unwrap());
    let digits: Vec<_> = digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    digits.concat()
}

#[actix::test]
async fn twenty_calls_at_once_share_one_run() {
    tokio::time::pause();
    let (attestor, runs) = slow("slow", Duration::from_millis(500));
    let selectors = start(vec![attestor]);
    let peer = this_process();

    let mut calls = JoinSet::new();
    for _ in 0..20 {
        calls.spawn(selectors.send(AttestWorkload {
            peer: Arc::clone(&peer),
        }));
    }
    let answers: Vec<_> = calls
        .join_all()
        .await
        .into_iter()
        .map(|answer| answer.unwrap().unwrap())
        .collect();

    assert_eq!(
        answers.iter().map(texts).collect::<Vec<_>>(),
        vec![["slow:x"]; 20]
    );
    assert_eq!(runs.get(), 1);
}

#[actix::test]
async fn an_answer_is_given_again_for_two_seconds() {
    tokio::time::pause();
    let (attestor, runs) = slow("slow", Duration::ZERO);
    let selectors = start(vec![attestor]);
    let peer = this_process();

    attest(&selectors, &peer).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1900)).await;
    attest(&selectors, &peer).await.unwrap();
    let within = runs.get();
    tokio::time::sleep(Duration::from_millis(200)).await;
    attest(&selectors, &peer).await.unwrap();

    assert_eq!((within, runs.get()), (1, 2));
}

#[actix::test]
async fn two_processes_are_never_taken_for_each_other() {
    let (attestor, runs) = slow("slow", Duration::ZERO);
    let selectors = start(vec![attestor]);
    let other = Sleeper::start(&sleep_program());

    attest(&selectors, &this_process()).await.unwrap();
    attest(&selectors, &other.peer()).await.unwrap();

    assert_eq!(runs.get(), 2);
}

#[actix::test]
async fn failures_are_not_remembered() {
    let (attestor, runs) = failing("broken");
    let selectors = start(vec![attestor]);
    let peer = this_process();

    let first = attest(&selectors, &peer).await;
    let second = attest(&selectors, &peer).await;

    assert_eq!(
        first,
        Err(AttestationError::AllFailed("broken: no luck".to_owned()))
    );
    assert_eq!((second, runs.get()), (first, 2));
}

#[actix::test]
async fn an_attestor_that_fails_takes_only_its_own_selectors_away() {
    let selectors = start(vec![failing("broken").0, slow("works", Duration::ZERO).0]);

    let answer = attest(&selectors, &this_process()).await.unwrap();

    assert_eq!(texts(&answer), ["works:x"]);
}

#[actix::test]
async fn an_attestor_that_hangs_takes_only_its_own_selectors_away() {
    tokio::time::pause();
    let (hanging, _) = fake("hanging", || Box::pin(std::future::pending()));
    let selectors = start(vec![hanging, slow("works", Duration::from_secs(1)).0]);
    let begun = tokio::time::Instant::now();

    let answer = attest(&selectors, &this_process()).await.unwrap();

    assert_eq!(texts(&answer), ["works:x"]);
    assert_eq!(begun.elapsed().as_secs(), ATTESTOR_DEADLINE.as_secs());
}

#[actix::test]
async fn when_all_attestors_hang_the_call_fails_and_says_so() {
    tokio::time::pause();
    let selectors = start(vec![fake("hanging", || Box::pin(std::future::pending())).0]);

    let answer = attest(&selectors, &this_process()).await;

    assert_eq!(
        answer,
        Err(AttestationError::AllFailed(
            "hanging: no answer within 5s".to_owned()
        ))
    );
}

#[actix::test]
async fn success_without_selectors_is_success() {
    let selectors = start(vec![
        failing("broken").0,
        fake("empty", || Box::pin(async { Ok(vec![]) })).0,
    ]);

    assert_eq!(
        attest(&selectors, &this_process()).await,
        Ok(SelectorSet::default())
    );
}

#[actix::test]
async fn attestors_run_side_by_side() {
    tokio::time::pause();
    let selectors = start(vec![
        slow("a", Duration::from_secs(3)).0,
        slow("b", Duration::from_secs(3)).0,
    ]);
    let begun = tokio::time::Instant::now();

    let answer = attest(&selectors, &this_process()).await.unwrap();

    assert_eq!(texts(&answer), ["a:x", "b:x"]);
    assert_eq!(begun.elapsed().as_secs(), 3);
}

#[actix::test]
async fn a_process_that_has_ended_gets_nothing() {
    let selectors = start(vec![slow("slow", Duration::ZERO).0]);
    let sleeper = Sleeper::start(&sleep_program());
    let peer = sleeper.peer();
    drop(sleeper);

    assert_eq!(
        attest(&selectors, &peer).await,
        Err(AttestationError::PeerGone)
    );
}

#[actix::test]
async fn a_number_that_names_another_process_now_gets_nothing() {
    let selectors = start(vec![slow("slow", Duration::ZERO).0]);
    let mut peer = Arc::into_inner(this_process()).unwrap();
    peer.start_time += 1;
    peer.pidfd = None;

    assert_eq!(
        attest(&selectors, &Arc::new(peer)).await,
        Err(AttestationError::PeerGone)
    );
}

#[actix::test]
async fn a_process_that_became_another_user_since_it_connected_gets_nothing() {
    let (attestor, runs) = slow("slow", Duration::ZERO);
    let selectors = start(vec![attestor]);
    for (uid, gid) in [(1, 0), (0, 1)] {
        let mut peer = Arc::into_inner(this_process()).unwrap();
        peer.uid += uid;
        peer.gid += gid;

        let answer = attest(&selectors, &Arc::new(peer)).await;

        assert_eq!(answer, Err(AttestationError::PeerGone), "{uid} {gid}");
    }
    assert_eq!(runs.get(), 0);
}

#[test]
fn an_answer_does_not_outlive_a_group_that_was_dropped() {
    let process = Subject::of(&this_process()).unwrap();
    let without = Subject {
        groups: hash_of_groups(&[20]),
        ..process
    };

    assert_ne!(
        without,
        Subject {
            groups: hash_of_groups(&[20, 27]),
            ..process
        }
    );
    assert_eq!(process, Subject::of(&this_process()).unwrap());
}

#[actix::test]
async fn a_process_that_ends_while_it_is_looked_at_gets_nothing() {
    let sleeper = Sleeper::start(&sleep_program());
    let peer = sleeper.peer();
    let victim = RefCell::new(Some(sleeper));
    let (killing, _) = fake("killing", move || {
        drop(victim.borrow_mut().take());
        Box::pin(async { Ok(found("killing", "x")) })
    });
    let selectors = start(vec![killing]);

    assert_eq!(
        attest(&selectors, &peer).await,
        Err(AttestationError::PeerGone)
    );
}

#[actix::test]
async fn what_waits_behind_a_full_house_gets_its_turn() {
    tokio::time::pause();
    let (attestor, runs) = slow("slow", Duration::from_millis(100));
    let selectors = start(vec![attestor]);
    let sleepers: Vec<_> = (0..40).map(|_| Sleeper::start(&sleep_program())).collect();

    let mut calls = JoinSet::new();
    for sleeper in &sleepers {
        calls.spawn(selectors.send(AttestWorkload {
            peer: sleeper.peer(),
        }));
    }
    let answers = calls.join_all().await;
    let served = answers
        .iter()
        .filter(|answer| matches!(answer, Ok(Ok(_))))
        .count();

    assert_eq!((served, runs.get()), (40, 40));
}

#[actix::test]
async fn unix_names_user_and_groups_of_the_process() {
    let peer = this_process();
    let status = ProcessDir::open(Path::new(PROC), peer.pid)
        .unwrap()
        .status()
        .unwrap();

    let answer = texts(&attest(&unix(UnixConfig::default()), &peer).await.unwrap());

    assert!(
        answer.contains(&format!("unix:uid:{}", status.uid))
            && answer.contains(&format!("unix:gid:{}", status.gid)),
        "{answer:?}"
    );
    assert!(
        status
            .groups
            .iter()
            .all(|group| answer.contains(&format!("unix:supplementary_gid:{group}"))),
        "{answer:?}"
    );
    assert!(
        status.uid != 0 || answer.contains(&"unix:user:root".to_owned()),
        "{answer:?}"
    );
    assert!(
        !answer
            .iter()
            .any(|selector| selector.starts_with("unix:path:")
                || selector.starts_with("unix:sha256:")),
        "{answer:?}"
    );
}

#[actix::test]
async fn unix_finds_path_and_hash_on_demand() {
    let directory = tempfile::tempdir().unwrap();
    let program = copy_of_sleep(directory.path(), "sleep");
    let expected = hash_of(&program);
    let sleeper = Sleeper::start(&program);
    let selectors = unix(UnixConfig {
        discover_workload_path: true,
        ..UnixConfig::default()
    });

    let answer = texts(&attest(&selectors, &sleeper.peer()).await.unwrap());

    assert!(
        answer.contains(&format!("unix:path:{}", program.display())),
        "{answer:?}"
    );
    assert!(
        answer.contains(&format!("unix:sha256:{expected}")),
        "{answer:?}"
    );
}

#[actix::test]
async fn unix_hashes_what_runs_and_not_what_lies_at_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let program = copy_of_sleep(directory.path(), "sleep");
    let expected = hash_of(&program);
    let sleeper = Sleeper::start(&program);
    std::fs::remove_file(&program).unwrap();
    std::fs::write(&program, "something else").unwrap();
    let selectors = unix(UnixConfig {
        discover_workload_path: true,
        ..UnixConfig::default()
    });

    let answer = texts(&attest(&selectors, &sleeper.peer()).await.unwrap());

    assert!(
        answer.contains(&format!("unix:path:{} (deleted)", program.display())),
        "{answer:?}"
    );
    assert!(
        answer.contains(&format!("unix:sha256:{expected}")),
        "{answer:?}"
    );
}

#[actix::test]
async fn unix_size_limits_drop_the_hash_alone() {
    let sleeper = Sleeper::start(&sleep_program());
    let size = i64::try_from(std::fs::metadata(sleep_program()).unwrap().len()).unwrap();
    for (workload_size_limit, hashed) in [(0, true), (size, true), (size - 1, false), (-1, false)] {
        let selectors = unix(UnixConfig {
            discover_workload_path: true,
            workload_size_limit,
            ..UnixConfig::default()
        });

        let answer = texts(&attest(&selectors, &sleeper.peer()).await.unwrap());

        assert_eq!(
            answer
                .iter()
                .any(|selector| selector.starts_with("unix:sha256:")),
            hashed,
            "{workload_size_limit}"
        );
        assert!(
            answer
                .iter()
                .any(|selector| selector.starts_with("unix:path:")),
            "{workload_size_limit}"
        );
        assert!(
            answer
                .iter()
                .any(|selector| selector.starts_with("unix:uid:")),
            "{workload_size_limit}"
        );
    }
}

#[actix::test]
async fn unix_reads_the_process_file_system_it_is_given() {
    let directory = tempfile::tempdir().unwrap();
    let peer = this_process();
    let process = directory.path().join(peer.pid.to_string());
    std::fs::create_dir(&process).unwrap();
    std::fs::write(
        process.join("status"),
        format!(
            "Uid:\t1\t{}\t3\t4\nGid:\t1\t{}\t3\t4\nGroups:\t4000000003 4000000004\n",
            peer.uid, peer.gid
        ),
    )
    .unwrap();
    let selectors = unix(UnixConfig {
        proc_root: directory.path().to_owned(),
        ..UnixConfig::default()
    });

    let answer = texts(&attest(&selectors, &peer).await.unwrap());

    let groups: Vec<_> = answer
        .into_iter()
        .filter(|selector| selector.starts_with("unix:supplementary_gid:"))
        .collect();
    assert_eq!(
        groups,
        [
            "unix:supplementary_gid:4000000003",
            "unix:supplementary_gid:4000000004"
        ]
    );
}

#[actix::test]
async fn unix_takes_no_selectors_from_a_process_that_runs_as_another_user() {
    let directory = tempfile::tempdir().unwrap();
    let peer = this_process();
    let process = directory.path().join(peer.pid.to_string());
    std::fs::create_dir(&process).unwrap();
    let attestor = UnixAttestor::new(
        UnixConfig {
            proc_root: directory.path().to_owned(),
            ..UnixConfig::default()
        },
        Clock::system(),
    );
    for (uid, gid) in [(peer.uid + 1, peer.gid), (peer.uid, peer.gid + 1)] {
        // The real and saved users are those that connected; what counts is the effective one.
        let status = format!(
            "Uid:\t{0}\t{uid}\t{0}\t{0}\nGid:\t{1}\t{gid}\t{1}\t{1}\nGroups:\t\n",
            peer.uid, peer.gid
        );
        std::fs::write(process.join("status"), status).unwrap();

        let answer = attestor.attest(Arc::clone(&peer)).await;

        assert_eq!(answer, Err(AttestorError::AnotherUser), "{uid} {gid}");
    }
}

#[actix::test]
async fn unix_takes_sixty_five_thousand_groups() {
    let directory = tempfile::tempdir().unwrap();
    let peer = this_process();
    let process = directory.path().join(peer.pid.to_string());
    std::fs::create_dir(&process).unwrap();
    let groups: Vec<_> = (4_000_000_000_u32..)
        .take(65_536)
        .map(|group| group.to_string())
        .collect();
    let groups = groups.join(" ");
    std::fs::write(
        process.join("status"),
        format!(
            "Uid:\t1\t{}\t3\t4\nGid:\t1\t{}\t3\t4\nGroups:\t{groups}\n",
            peer.uid, peer.gid
        ),
    )
    .unwrap();
    let selectors = unix(UnixConfig {
        proc_root: directory.path().to_owned(),
        ..UnixConfig::default()
    });

    let answer = attest(&selectors, &peer).await.unwrap();

    assert!(answer.contains(&Selector::new("unix", "supplementary_gid:4000065535").unwrap()));
}

#[actix::test]
async fn unix_says_what_it_may_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let selectors = unix(UnixConfig {
        proc_root: directory.path().to_owned(),
        ..UnixConfig::default()
    });

    let answer = attest(&selectors, &this_process()).await;

    let expected =
        "unix: unable to read process of the workload: No such file or directory (os error 2)";
    assert_eq!(
        answer,
        Err(AttestationError::AllFailed(expected.to_owned()))
    );
}
