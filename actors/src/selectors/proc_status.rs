//! What `/proc/PID/status` says of a process (proc(5)). Pure.

/// Most supplementary groups that Linux lets a process have (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 65_536;

/// Whose rights a process has, in numbers of the agent's own user namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcStatus {
    /// Effective user ID.
    pub uid: u32,
    /// Effective group ID.
    pub gid: u32,
    /// Supplementary group IDs, as listed.
    pub groups: Vec<u32>,
}

impl ProcStatus {
    /// Reads the text of `/proc/PID/status`; none if a line is missing or damaged.
    pub fn parse(text: &[u8]) -> Option<Self> {
        // The process chooses its name in the first line, but the kernel escapes line ends in it.
        let values = |key: &[u8]| {
            let line = text
                .split(|byte| *byte == b'\n')
                .find_map(|line| line.strip_prefix(key));
            line.and_then(|line| std::str::from_utf8(line).ok())
                .map(str::split_ascii_whitespace)
        };
        let effective = |key: &[u8]| values(key)?.nth(1)?.parse().ok();
        Some(Self {
            uid: effective(b"Uid:")?,
            gid: effective(b"Gid:")?,
            groups: values(b"Groups:")?
                .take(MAX_GROUPS)
                .map(|group| group.parse().ok())
                .collect::<Option<_>>()?,
        })
    }

    /// Whether the process has these effective IDs, such as those of `SO_PEERCRED` (workload-side 1.3 step 4).
    pub fn runs_as(&self, uid: u32, gid: u32) -> bool {
        (self.uid, self.gid) == (uid, gid)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn status(uid: &str, gid: &str, groups: &str) -> String {
        format!(
            "Name:\tw\\nUid:\t9\nUmask:\t0022\nUid:\t{uid}\nGid:\t{gid}\nFDSize:\t64\nGroups:\t{groups}\nVmPeak:\t1 kB\n"
        )
    }

    #[test]
    fn the_effective_ids_and_all_groups_are_taken() {
        let text = status("1\t2\t3\t4", "5\t6\t7\t8", "10 4294967295 ");

        let parsed = ProcStatus::parse(text.as_bytes());

        assert_eq!(
            parsed,
            Some(ProcStatus {
                uid: 2,
                gid: 6,
                groups: vec![10, u32::MAX]
            })
        );
    }

    #[test]
    fn a_process_may_have_no_groups_or_sixty_five_thousand() {
        let many: Vec<u32> = (0..65_536).map(|group| group * 7).collect();
        let listed = many
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(" ");

        let without = ProcStatus::parse(status("0\t0\t0\t0", "0\t0\t0\t0", " ").as_bytes());
        let with = ProcStatus::parse(status("0\t0\t0\t0", "0\t0\t0\t0", &listed).as_bytes());

        assert_eq!(without.map(|status| status.groups), Some(vec![]));
        assert_eq!(with.map(|status| status.groups), Some(many));
    }

    #[test]
    fn damaged_text_gives_nothing() {
        let good = ("1\t2\t3\t4", "5\t6\t7\t8", "10");
        for text in [
            String::new(),
            "Uid:\t1\t2\n".to_owned(),
            status("1", good.1, good.2),
            status("1\t-2", good.1, good.2),
            status("1\t4294967296", good.1, good.2),
            status(good.0, "a\tb", good.2),
            status(good.0, good.1, "1 x"),
            status(good.0, good.1, good.2).replace("Groups:", "Group:"),
        ] {
            assert_eq!(ProcStatus::parse(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in proptest::collection::vec(any::<u8>(), 0..400), tail in "[0-9() \tUidGroups:\n-]{0,80}") {
            let text = [text, tail.into_bytes()].concat();

            let parsed = ProcStatus::parse(&text);

            prop_assert!(parsed.is_none_or(|status| status.groups.len() <= text.len()));
        }
    }
}
