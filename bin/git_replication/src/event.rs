//! Events: what Gerrit's `stream-events`, and push webhooks of Gerrit, GitHub, Gitea and GitLab, say has changed.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::project::Project;
use crate::refs::{Refs, is_ref};

/// The fields of events that matter here.
const FIELDS: &str = "change patchSet project projectName ref refUpdate refUpdates repository type";

/// What has changed in a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) project: Project,
    pub(crate) refs: Refs,
}

/// Reads an event. `None` is one about something else than refs.
pub(crate) fn parse(text: &[u8]) -> Result<Option<Event>, String> {
    let wrong = |error| format!("the event is not JSON: {error}");
    // Other fields, such as the commits of a push, may be large.
    let mut fields: BTreeMap<String, &RawValue> = serde_json::from_slice(text).map_err(wrong)?;
    fields.retain(|name, _| FIELDS.split(' ').any(|field| field == name));
    let event: Value = serde_json::to_value(fields).map_err(wrong)?;
    let at = |pointer: &str| event.pointer(pointer).and_then(Value::as_str);
    let one = |pointer| at(pointer).into_iter().collect();
    let (project, names): (_, Vec<&str>) = match (at("/type"), at("/ref")) {
        // GitHub, Gitea and GitLab, whose other events about repositories have no ref.
        (None, Some(name)) => {
            let project = at("/repository/full_name");
            let project = project.or_else(|| at("/project/path_with_namespace"));
            (project, vec![name])
        }
        (Some("ref-updated"), _) => (at("/refUpdate/project"), one("/refUpdate/refName")),
        (Some("patchset-created"), _) => (at("/change/project"), one("/patchSet/ref")),
        (Some("batch-ref-updated"), _) => {
            let updates = event["refUpdates"].as_array().into_iter().flatten();
            let names = updates.filter_map(|update| update["refName"].as_str());
            let project = at("/project").or_else(|| at("/refUpdates/0/project"));
            (project, names.collect())
        }
        (Some("project-created"), _) => (at("/projectName"), Vec::new()),
        _ => return Ok(None),
    };
    let project = Project::new(project.ok_or("the event names no project")?)?;
    let refs = match &names[..] {
        [] if at("/type") == Some("project-created") => Refs::all(),
        [] => return Err("the event names no ref".to_owned()),
        // A push of all refs includes those with odd names.
        _ => named(names.into_iter().map(str::to_owned)).unwrap_or_else(|_| Refs::all()),
    };
    Ok(Some(Event { project, refs }))
}

/// Refs by name. Older Gerrits leave out the beginning of a branch's.
pub(crate) fn named(names: impl IntoIterator<Item = String>) -> Result<Refs, String> {
    let full = |name: String| match name.as_str() {
        short if !short.starts_with("refs/") && short != "HEAD" => format!("refs/heads/{name}"),
        _ => name,
    };
    let names: Vec<String> = names.into_iter().map(full).collect();
    match names.iter().find(|name| !is_ref(name)) {
        Some(name) => Err(format!(
            "{name:?} is not the name of a ref; give it as in refs/heads/main"
        )),
        None => Ok(Refs::of(names)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> (String, Refs) {
        let event = parse(text.as_bytes()).unwrap().unwrap();
        (event.project.as_str().to_owned(), event.refs)
    }

    #[test]
    fn events_of_gerrit() {
        let main = || Refs::of(["refs/heads/main"]);
        let updated = r#"{"submitter":{"name":"A"},"refUpdate":{"oldRev":"0","newRev":"1","refName":"refs/heads/main","project":"team/app"},"type":"ref-updated","eventCreatedOn":1}"#;
        assert_eq!(of(updated), ("team/app".to_owned(), main()));
        let old = r#"{"refUpdate":{"refName":"main","project":"app"},"type":"ref-updated"}"#;
        assert_eq!(of(old), ("app".to_owned(), main()));
        let batch = r#"{"type":"batch-ref-updated","project":"app","refUpdates":[{"refName":"refs/heads/main"},{"refName":"refs/tags/v1"}]}"#;
        assert_eq!(
            of(batch),
            (
                "app".to_owned(),
                Refs::of(["refs/heads/main", "refs/tags/v1"])
            )
        );
        let patch = r#"{"type":"patchset-created","project":{"name":"app"},"change":{"project":"app"},"patchSet":{"ref":"refs/changes/01/1/2"}}"#;
        assert_eq!(
            of(patch),
            ("app".to_owned(), Refs::of(["refs/changes/01/1/2"]))
        );
        assert_eq!(
            of(r#"{"type":"project-created","projectName":"app","headName":"refs/heads/main"}"#),
            ("app".to_owned(), Refs::all())
        );
    }

    #[test]
    fn with_an_odd_name_all_refs_are_pushed() {
        let odd = r#"{"type":"batch-ref-updated","project":"app","refUpdates":[{"refName":"refs/heads/main"},{"refName":"refs/heads/a b"}]}"#;
        assert_eq!(of(odd), ("app".to_owned(), Refs::all()));
    }

    #[test]
    fn pushes_of_github_and_gitea() {
        let push = r#"{"ref":"refs/heads/main","before":"0","after":"1","repository":{"id":1,"name":"app","full_name":"team/app"},"pusher":{"name":"a"}}"#;
        assert_eq!(
            of(push),
            ("team/app".to_owned(), Refs::of(["refs/heads/main"]))
        );
    }

    #[test]
    fn others_are_ignored_or_refused() {
        for other in [
            r#"{"zen":"x","hook_id":1}"#,
            r#"{"type":"comment-added","change":{"project":"a"},"patchSet":{"ref":"refs/changes/1/1/1"}}"#,
            "{}",
        ] {
            assert_eq!(parse(other.as_bytes()), Ok(None), "{other}");
        }
        for bad in [
            "",
            "[",
            r#"{"type":"ref-updated","refUpdate":{"refName":"refs/heads/a","project":"../a"}}"#,
            r#"{"type":"ref-updated","refUpdate":{"refName":"refs/heads/a"}}"#,
            r#"{"type":"batch-ref-updated","project":"a","refUpdates":[]}"#,
            r#"{"ref":"--mirror","repository":{"full_name":"a/-b"}}"#,
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
