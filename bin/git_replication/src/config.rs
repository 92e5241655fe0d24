//! Gerrit's `replication.config`, or one with remotes in files of their own beside it.
//!
//! Units are Gerrit's: delays and time-outs are seconds, `replicationRetry` is minutes.

mod file;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::project::{Pattern, Project, is_absence};
use crate::refs::{Refspec, by_target};
use crate::target::{NameStyle, Template, place, without_user};
use file::{Entry, File};

pub(crate) use file::Refused;

/// What is done about failed pushes of a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Retry {
    /// `None` for no limit.
    pub(crate) max: Option<u32>,
    pub(crate) delay: Duration,
}

impl Retry {
    /// Whether so many failures in a row are retried.
    pub(crate) fn allows(self, failures: u32) -> bool {
        self.max.is_none_or(|max| failures <= max)
    }
}

/// A section `remote`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Remote {
    pub(crate) name: String,
    pub(crate) urls: Vec<Template>,
    pub(crate) push: Vec<Refspec>,
    projects: Vec<Pattern>,
    exclude: Vec<Pattern>,
    /// Maximum pushes at a time, of all nodes.
    pub(crate) threads: u32,
    pub(crate) delay: Duration,
    /// The least delay of what arrives during a push to the same place.
    pub(crate) reschedule_delay: Duration,
    pub(crate) retry: Retry,
    /// For refs that are locked at the target.
    pub(crate) lock_retry: Retry,
    /// The longest silence of a push.
    pub(crate) timeout: Option<Duration>,
    pub(crate) mirror: bool,
    pub(crate) create_missing: bool,
    style: NameStyle,
}

/// Where a project is pushed to.
#[derive(Debug, Clone)]
pub(crate) struct Target<'a> {
    pub(crate) remote: &'a Remote,
    pub(crate) project: &'a Project,
    pub(crate) template: &'a Template,
    /// With credentials, if the configuration has them.
    pub(crate) url: String,
    /// See [`place`].
    pub(crate) place: String,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Config {
    pub(crate) remotes: Vec<Remote>,
    /// Settings without effect here.
    pub(crate) ignored: BTreeSet<String>,
    pub(crate) replicate_on_startup: bool,
    pub(crate) auto_reload: bool,
}

/// What to do instead of a setting that keeps refs from being published. Without it, all would be.
fn instead_of(key: &str) -> Option<&'static str> {
    Some(match key {
        "authgroup" => {
            "Gerrit accounts are not supported; remove this setting and choose what is pushed with projects and push"
        }
        "excludedrefspattern" => "use a refspec instead, such as `push = ^refs/changes/*`",
        "replicatepermissions" => "use `push = ^refs/meta/config` instead",
        "replicatenotedbmetarefs" => "use `push = ^refs/changes/*/meta` and the like instead",
        "replicatehiddenprojects" => {
            "hidden projects are not known here; remove this setting, and name them with excludeProjects"
        }
        _ => return None,
    })
}

/// Settings of Gerrit for all remotes.
#[derive(Debug, Clone, Copy, Default)]
struct Defaults {
    max_retries: u32,
    lock_retries: Option<u32>,
    /// The newer name of `lock_retries`, which wins.
    update_retries: Option<u32>,
    force: bool,
}

impl Config {
    /// Reads a file, and the remotes in the directory beside it, if that exists: then those in the file do not count.
    pub(crate) fn read(path: &Path) -> Result<Self, Refused> {
        let main = File::read(path)?;
        let (mut config, mut defaults) = (Self::default(), Defaults::default());
        let (remotes, shared): (Vec<_>, Vec<_>) =
            (main.entries.iter()).partition(|entry| entry.section == "remote");
        for entry in shared {
            let set = config.set(entry, &mut defaults);
            set.map_err(|reason| main.refuse_value(entry, &reason))?;
        }
        let single = single_files(path).map_err(|error| {
            main.refuse(format!(
                "cannot read the directory of remotes beside it: {error}"
            ))
        })?;
        let without_remotes = if let Some(single) = single {
            for path in single {
                let file = File::read(&path)?;
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                config.add(&file, None, &name, defaults)?;
            }
            "the directory beside it replaces its remotes, and has none; add NAME.config to it, or remove it"
        } else {
            let names = remotes.into_iter().map(|entry| {
                let help = "name the section, as in [remote \"eu\"]";
                let name = entry.subsection.as_deref();
                name.ok_or_else(|| main.refuse_value(entry, help))
            });
            for name in names.collect::<Result<BTreeSet<_>, _>>()? {
                config.add(&main, Some(name), name, defaults)?;
            }
            "it has no remote; add [remote \"NAME\"] with a url"
        };
        if config.remotes.is_empty() {
            return Err(main.refuse(without_remotes));
        }
        Ok(config)
    }

    /// Adds the remote in a section, unless it is one of the pull-replication plugin, which only fetches.
    fn add(
        &mut self,
        file: &File,
        section: Option<&str>,
        name: &str,
        defaults: Defaults,
    ) -> Result<(), Refused> {
        let own =
            |entry: &&Entry| entry.section == "remote" && entry.subsection.as_deref() == section;
        let own: Vec<&Entry> = file.entries.iter().filter(own).collect();
        let has = |key: &str| own.iter().any(|entry| entry.key == key);
        if has("fetch") && !has("push") {
            self.ignored
                .insert(format!("remote.{name} (it only fetches)"));
            return Ok(());
        }
        let mut remote = Remote::new(name, defaults);
        for entry in own {
            let set = remote.set(entry);
            if !set.map_err(|reason| file.refuse_value(entry, &reason))? {
                self.ignored.insert(format!("remote.{name}.{}", entry.key));
            }
        }
        remote.check(file, defaults)?;
        self.remotes.push(remote);
        Ok(())
    }

    /// Applies a value, or tells what to give instead.
    fn set(&mut self, entry: &Entry, defaults: &mut Defaults) -> Result<(), String> {
        match (entry.section.as_str(), entry.key.as_str()) {
            ("gerrit", "replicateonstartup") => self.replicate_on_startup = entry.boolean()?,
            ("gerrit", "autoreload") => self.auto_reload = entry.boolean()?,
            ("gerrit", "defaultforceupdate") => defaults.force = entry.boolean()?,
            ("replication", "maxretries") => defaults.max_retries = entry.number()?,
            ("replication", "lockerrormaxretries") => defaults.lock_retries = Some(entry.number()?),
            ("replication", "updatereferrormaxretries") => {
                defaults.update_retries = Some(entry.number()?);
            }
            (section, key) => {
                self.ignored.insert(format!("{section}.{key}"));
            }
        }
        Ok(())
    }

    pub(crate) fn remote(&self, name: &str) -> Option<&Remote> {
        self.remotes.iter().find(|remote| remote.name == name)
    }

    /// Where a project is pushed to.
    pub(crate) fn targets<'a>(&'a self, project: &'a Project) -> impl Iterator<Item = Target<'a>> {
        let remotes = self.remotes.iter();
        remotes.flat_map(|remote| remote.targets(project))
    }
}

impl Remote {
    fn new(name: &str, defaults: Defaults) -> Self {
        let delay = Duration::from_mins(1);
        let lock_retries = defaults.update_retries.or(defaults.lock_retries);
        Self {
            name: name.to_owned(),
            threads: 1,
            delay: Duration::from_secs(15),
            reschedule_delay: Duration::from_secs(3),
            retry: Retry {
                max: unlimited(defaults.max_retries),
                delay,
            },
            lock_retry: Retry {
                max: lock_retries.or(Some(3)),
                delay,
            },
            // Nothing else ends a push whose connection is gone.
            timeout: Some(Duration::from_hours(1)),
            create_missing: true,
            ..Self::default()
        }
    }

    /// Applies a value, or tells what to give instead. False if it has no effect here.
    fn set(&mut self, entry: &Entry) -> Result<bool, String> {
        let text = entry.text();
        match entry.key.as_str() {
            "url" => self.urls.push(Template::parse(text)?),
            "push" => self.push.push(Refspec::parse(text)?),
            "projects" => self.projects.push(Pattern::parse(text)?),
            "excludeprojects" => self.exclude.push(Pattern::parse(text)?),
            "threads" => {
                let threads = entry.number().ok();
                let threads = threads.filter(|n| (1..=jobs::LIMIT_SLOTS_MAX).contains(n));
                self.threads = threads.ok_or("give a number from 1 to 10000")?;
            }
            "replicationdelay" => self.delay = entry.seconds()?,
            "rescheduledelay" => self.reschedule_delay = entry.seconds()?,
            "replicationretry" => {
                let delay = entry.seconds()? * 60;
                (self.retry.delay, self.lock_retry.delay) = (delay, delay);
            }
            "replicationmaxretries" => self.retry.max = unlimited(entry.number()?),
            "timeout" => self.timeout = Some(entry.seconds()?).filter(|time| !time.is_zero()),
            "mirror" => self.mirror = entry.boolean()?,
            "createmissingrepositories" => self.create_missing = entry.boolean()?,
            "remotenamestyle" => {
                self.style = match text.to_ascii_lowercase().as_str() {
                    "slash" => NameStyle::Slash,
                    "dash" => NameStyle::Dash,
                    "underscore" => NameStyle::Underscore,
                    "basenameonly" => NameStyle::BasenameOnly,
                    _ => return Err("give slash, dash, underscore or basenameOnly".to_owned()),
                };
            }
            key => match instead_of(key) {
                None => return Ok(false),
                // These do it when they are false.
                Some(_) if key.starts_with("replicate") && entry.boolean()? => {}
                Some(instead) => return Err(instead.to_owned()),
            },
        }
        Ok(true)
    }

    fn check(&mut self, file: &File, defaults: Defaults) -> Result<(), Refused> {
        if self.urls.is_empty() {
            return Err(file.refuse(format!("remote {:?} has no url", self.name)));
        }
        let one = matches!(&self.projects[..], [Pattern::Exact(_)]);
        if let Some(url) = self.urls.iter().find(|url| !url.has_name() && !one) {
            return Err(file.refuse(format!(
                "the url of remote {:?} has no `${{name}}`, so all projects would go to {}; add it, or name one project",
                self.name,
                without_user(url.as_str())
            )));
        }
        if self.push.iter().all(|spec| spec.negative) {
            let force = if defaults.force { "+" } else { "" };
            self.push
                .extend(Refspec::parse(&format!("{force}refs/*:refs/*")));
        }
        // Gerrit makes them for itself, and does not replicate them either.
        self.push.extend(Refspec::parse("^refs/cache-automerge/*"));
        let push = by_target(std::mem::take(&mut self.push));
        let name = &self.name;
        self.push = push.map_err(|why| file.refuse(format!("remote {name:?}: {why}")))?;
        Ok(())
    }

    /// Where a project is pushed to; nowhere if it is not this remote's.
    pub(crate) fn targets<'a>(&'a self, project: &'a Project) -> impl Iterator<Item = Target<'a>> {
        let wanted = self.projects.is_empty() || Pattern::any(&self.projects, project, false);
        let wanted = wanted && !Pattern::any(&self.exclude, project, true);
        let urls = self.urls.iter().filter(move |_| wanted);
        urls.filter_map(move |template| {
            let url = template.expand(project, self.style);
            Some(Target {
                remote: self,
                project,
                template,
                place: place(&url).ok()?,
                url,
            })
        })
    }
}

/// The files with one remote each, in the directory of the main file's name; `None` if that does not exist.
fn single_files(path: &Path) -> io::Result<Option<Vec<PathBuf>>> {
    let entries = match std::fs::read_dir(path.with_extension("")) {
        Err(error) if is_absence(&error) => return Ok(None),
        entries => entries?,
    };
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut files = paths.collect::<io::Result<Vec<PathBuf>>>()?;
    files.retain(|path| path.is_file() && path.extension().is_some_and(|end| end == "config"));
    files.sort();
    Ok(Some(files))
}

pub(crate) type Contents = Vec<(Option<Vec<u8>>, PathBuf)>;

/// The bytes of all files that make up a configuration; when they change, it is read again.
pub(crate) fn contents(path: &Path) -> Contents {
    let single = single_files(path).ok().flatten().unwrap_or_default();
    let files = [path.to_owned()].into_iter().chain(single);
    let read = |file: PathBuf| (std::fs::read(&file).ok(), file);
    files.map(read).collect()
}

/// Gerrit's 0 is no limit.
fn unlimited(max: u32) -> Option<u32> {
    (max > 0).then_some(max)
}
