//! Rules for trust domain names and SPIFFE IDs in the configuration (SPIFFE ID 2). Pure.

/// Reads a trust domain name, bare or as `spiffe://name[/path]`; gives the name, or says why it is none.
pub(super) fn parse_trust_domain(text: &str) -> Result<String, String> {
    if text.contains(":/") {
        return parse_spiffe_id(text).map(|(name, _)| name);
    }
    check_name(text)?;
    Ok(text.to_owned())
}

/// Splits a SPIFFE ID into the trust domain name and the path, which is empty or starts with a slash.
pub(super) fn parse_spiffe_id(text: &str) -> Result<(String, String), String> {
    let rest = text
        .strip_prefix("spiffe://")
        .ok_or("scheme is missing or not \"spiffe\"")?;
    let (name, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    check_name(name)?;
    for segment in path.split('/').skip(1) {
        if segment.is_empty() || segment == "." || segment == ".." {
            return Err("path has an empty or relative segment".to_owned());
        }
        if !segment
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))
        {
            return Err(
                "path may hold only letters, digits, dots, dashes and underscores".to_owned(),
            );
        }
    }
    Ok((name.to_owned(), path.to_owned()))
}

fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("trust domain is missing".to_owned());
    }
    let is_fine =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.' | '_');
    if name.chars().all(is_fine) {
        Ok(())
    } else {
        Err(
            "trust domain may hold only lower case letters, digits, dots, dashes and underscores"
                .to_owned(),
        )
    }
}
