//! Names of users and groups from the text of `/etc/passwd` and `/etc/group`, as Go reads them without cgo. Pure.

use std::collections::HashMap;

/// Which of the two files a text comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountFile {
    /// `/etc/passwd`: passwd(5).
    Passwd,
    /// `/etc/group`: group(5).
    Group,
}

/// Names by ID.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Accounts(HashMap<u32, Box<str>>);

impl Accounts {
    /// Reads the text of a file. The first line of an ID counts; comments, damaged lines and those of NIS (`+`, `-`) are passed over.
    pub fn parse(text: &[u8], file: AccountFile) -> Self {
        let mut names = HashMap::new();
        for line in text.split(|byte| *byte == b'\n') {
            if let Some((id, name)) = std::str::from_utf8(line)
                .ok()
                .and_then(|line| account(line.trim(), file))
            {
                names.entry(id).or_insert_with(|| name.into());
            }
        }
        Self(names)
    }

    /// The name of an ID, if it has one.
    pub fn name(&self, id: u32) -> Option<&str> {
        self.0.get(&id).map(AsRef::as_ref)
    }
}

fn account(line: &str, file: AccountFile) -> Option<(u32, &str)> {
    if line.starts_with(['#', '+', '-']) {
        return None;
    }
    let fields: Vec<&str> = line.splitn(8, ':').collect();
    let (fields_needed, numbers): (usize, &[usize]) = match file {
        AccountFile::Passwd => (7, &[2, 3]),
        AccountFile::Group => (4, &[2]),
    };
    if fields.len() < fields_needed
        || !numbers.iter().all(|at| {
            fields
                .get(*at)
                .is_some_and(|field| field.parse::<i64>().is_ok())
        })
    {
        return None;
    }
    let (name, id) = (*fields.first()?, *fields.get(2)?);
    let number: u32 = id.parse().ok()?;
    // The reference looks for the number's text: `007` is nobody's ID.
    (!name.is_empty() && number.to_string() == id).then_some((number, name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn users_are_found_by_their_number() {
        let text = b"root:x:0:0:root:/root:/bin/bash\n# web:x:1:1::/:/x\n  web:x:33:33:a:/var/www:/bin/sh:more\nagain:x:33:33::/:/x\n\nlast:x:4294967294:5::/:";

        let users = Accounts::parse(text, AccountFile::Passwd);

        for (id, name) in [
            (0, Some("root")),
            (1, None),
            (33, Some("web")),
            (4_294_967_294, Some("last")),
            (5, None),
        ] {
            assert_eq!(users.name(id), name, "{id}");
        }
    }

    #[test]
    fn groups_are_found_by_their_number() {
        let groups = Accounts::parse(
            b"wheel:*:0:root\nsudo:x:27:\r\nnone:x:28\n",
            AccountFile::Group,
        );

        assert_eq!(
            (groups.name(0), groups.name(27), groups.name(28)),
            (Some("wheel"), Some("sudo"), None)
        );
    }

    #[test]
    fn damaged_lines_are_passed_over() {
        for line in [
            "x",
            ":::::::",
            "a:x:7",
            "a:x:7:7:::\u{0}",
            "+a:x:7:7::/:/x",
            "-a:x:7:7::/:/x",
            ":x:7:7::/:/x",
            "a:x:007:7::/:/x",
            "a:x:+7:7::/:/x",
            "a:x:-1:7::/:/x",
            "a:x:7:y::/:/x",
            "a:x:4294967296:7::/:/x",
            "a:x: 7:7::/:/x",
            "a:x:7:7::/",
        ] {
            let users = Accounts::parse(
                format!("{line}\nok:x:9:9::/:/x").as_bytes(),
                AccountFile::Passwd,
            );

            let expected: &[u32] = if line.ends_with('\u{0}') {
                &[7, 9]
            } else {
                &[9]
            };
            let mut found: Vec<u32> = users.0.keys().copied().collect();
            found.sort_unstable();
            assert_eq!(found, expected, "{line:?}");
        }
    }

    #[test]
    fn a_line_that_is_no_utf8_harms_no_other() {
        let users = Accounts::parse(b"\xff:x:1:1::/:/x\nok:x:2:2::/:/x", AccountFile::Passwd);

        assert_eq!((users.name(1), users.name(2)), (None, Some("ok")));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in proptest::collection::vec(any::<u8>(), 0..300), lines in "([a-z+#-]{0,3}:x?:[0-9]{0,11}:[0-9]{0,3}:::?\n){0,5}") {
            let text = [text, lines.into_bytes()].concat();

            for file in [AccountFile::Passwd, AccountFile::Group] {
                prop_assert!(Accounts::parse(&text, file).0.values().all(|name| !name.is_empty()));
            }
        }
    }
}
