//! Events: what Gerrit's `stream-events`, and push webhooks of Gerrit, GitHub and Gitea, say has changed.

use serde::Deserialize;

use crate::project::Project;
use crate::refs::{Refs, is_ref};

/// What has changed in a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) project: Project,
    pub(crate) refs: Refs,
}

/// The members of all kinds of events that matter here.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Payload {
    /// Gerrit: the kind of the event.
    r#type: Option<String>,
    ref_update: Option<RefUpdate>,
    ref_updates: Vec<RefUpdate>,
    patch_set: Option<PatchSet>,
    change: Option<Change>,
    project: Option<serde_json::Value>,
    project_name: Option<String>,
    /// GitHub and Gitea: the ref, and its repository.
    r#ref: Option<String>,
    repository: Option<Repository>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RefUpdate {
    ref_name: String,
    project: Option<String>,
}

#[derive(Debug, Deserialize)]
struct PatchSet {
    r#ref: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Change {
    project: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Repository {
    full_name: String,
}

/// Reads an event. `None` is one about something else than refs.
pub(crate) fn parse(text: &[u8]) -> Result<Option<Event>, String> {
    let payload: Payload = serde_json::from_slice(text)
        .map_err(|error| format!("the event is not of a known form: {error}"))?;
    let (project, refs) = match payload {
        Payload {
            r#ref: Some(name),
            repository: Some(repository),
            ..
        } => (repository.full_name, named([name])?),
        Payload {
            project_name: Some(project),
            r#type: Some(kind),
            ..
        } if kind == "project-created" => (project, Refs::all()),
        Payload {
            ref_update: Some(update),
            ..
        } => {
            let project = update
                .project
                .ok_or("the event's refUpdate has no project")?;
            (project, named([update.ref_name])?)
        }
        Payload {
            ref_updates,
            project,
            ..
        } if !ref_updates.is_empty() => {
            let own = ref_updates[0].project.clone();
            let project = own.or_else(|| Some(project?.as_str()?.to_owned()));
            let project = project.ok_or("the event's refUpdates have no project")?;
            (
                project,
                named(ref_updates.into_iter().map(|update| update.ref_name))?,
            )
        }
        Payload {
            patch_set: Some(PatchSet { r#ref: Some(name) }),
            change: Some(Change {
                project: Some(project),
            }),
            r#type,
            ..
        } if r#type.as_deref() == Some("patchset-created") => (project, named([name])?),
        _ => return Ok(None),
    };
    let project = Project::new(&project)?;
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
            r#"{"refUpdate":{"refName":"refs/heads/a b","project":"a"}}"#,
            r#"{"refUpdate":{"refName":"refs/heads/a","project":"../a"}}"#,
            r#"{"ref":"--mirror","repository":{"full_name":"a/-b"}}"#,
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
