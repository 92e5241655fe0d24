//! The configuration. Sections are declared next to the code that reads them; values come from defaults < file <
//! environment < flags. Every setting is checked separately, so errors name its position: file, line and column,
//! variable, or flag. The environment is passed in, so that tests need not change it.

mod check;
mod file;
mod problem;
pub mod reference;
pub mod schema;
mod sections;
pub(crate) mod setting;

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use zeroize::Zeroize as _;

pub use problem::{Origin, Problem, Refused};
pub use sections::{
    Admins, AuthOptions, CouchdbOptions, DurabilityOption, HttpOptions, JwtKeys, JwtOptions,
    KeyOptions, LogFormat, LogOptions, MetricsOptions, NodeOptions, NodeTypes, RulesOptions,
    Secrets, StoreOptions,
};

use problem::nearest;
use schema::Form;

/// Prefix of environment variables.
const PREFIX: &str = "DAVENPORT_";
/// Variables of the command line itself, and the options that two of them stand for.
const OTHERS: [&str; 4] = [
    "DAVENPORT_ADMIN",
    "DAVENPORT_CONFIG",
    "DAVENPORT_URL",
    "DAVENPORT_USER",
];
const SHORT: [(&str, &str); 2] = [
    ("DAVENPORT_STORE", "store.url"),
    ("DAVENPORT_LOG", "log.level"),
];

/// All options, by section.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Settings of the whole process.
    pub node: NodeOptions,
    /// Roles of the process, under CouchDB's names. The environment variables
    /// `COUCHDB_NODE_TYPE_API_FRONTEND` and `COUCHDB_NODE_TYPE_REPLICATION` override these options;
    /// `--roles` overrides both.
    pub node_types: NodeTypes,
    /// Where data is stored.
    pub store: StoreOptions,
    /// The keys that seal credentials and sealed jobs in the store. They are not kept in the store.
    pub keys: KeyOptions,
    /// The address that clients connect to.
    pub http: HttpOptions,
    /// How requests are handled.
    pub api: api::Options,
    /// A CouchDB cluster behind this frontend.
    pub upstream: api::UpstreamOptions,
    /// Server administrators: `NAME = "HASH"`, where the hash is the output of `davenport
    /// hash-password`. A plain password also works: it is hashed at startup, and only the hash is
    /// kept.
    pub admins: Admins,
    /// Authentication, under CouchDB's names.
    pub chttpd_auth: AuthOptions,
    /// Requirements for JSON Web Tokens, under CouchDB's names.
    pub jwt_auth: JwtOptions,
    /// Keys that verify JSON Web Tokens, as in CouchDB: `hmac:KID` is at least 16 bytes in base64,
    /// `rsa:KID` and `ec:KID` are public keys in PEM; `_default` in place of the KID is for tokens
    /// without one. Without any key, tokens are not accepted.
    pub jwt_keys: JwtKeys,
    /// Jobs and replications, under CouchDB's names.
    pub replicator: scheduler::Options,
    /// Connections to other servers. CouchDB has these options in `[replicator]`.
    pub network: couch::NetworkOptions,
    /// Credentials that server administrators can refer to in documents with `"auth":
    /// {"secret_ref": NAME}` instead of including them. `[secrets.NAME]` has the members of `auth`,
    /// and `origins`, the list of servers that the secret may be sent to, such as `origins =
    /// ["https://couch.example.com:6984"]`.
    pub secrets: Secrets,
    /// Servers that are followed: replications from them, and rules about them, wait for changes in the store and cost
    /// nothing meanwhile. The cluster of `upstream.url` is one of them under the name `upstream`, unless a section
    /// has its URL. All nodes need the same sections. Each section `[sources.NAME]` has these options:
    pub sources: rules::source::SourcesOptions,
    /// Rules, the documents of databases `_rules`, `NAME/_rules` and `spiegel`.
    pub rules: RulesOptions,
    /// Webhook calls.
    pub webhooks: rules::deliver::Options,
    /// Options from CouchDB's section of the same name.
    pub couchdb: CouchdbOptions,
    /// The job queue, under CouchDB's names.
    pub couch_jobs: jobs::Options,
    /// Logs, which are written to standard error.
    pub log: LogOptions,
    /// Metrics of nodes that are not frontends.
    pub metrics: MetricsOptions,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[clap(rename_all = "snake_case")]
pub enum Role {
    /// Serve HTTP requests and create jobs from documents.
    ApiFrontend,
    /// Run jobs.
    Replication,
}

/// Where values come from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub file: Option<PathBuf>,
    pub environment: BTreeMap<String, String>,
    /// Flags: the flag, the option it sets, and the value.
    pub flags: Vec<(&'static str, String, String)>,
    /// The roles, if a flag or the program sets them.
    pub roles: Option<Vec<Role>>,
    pub admin_file: Option<PathBuf>,
    /// Administrators from the command line.
    pub admins: Admins,
}

/// A value and where it comes from.
#[derive(Clone, Debug)]
struct Setting {
    path: String,
    value: toml::Value,
    origin: Origin,
}

/// A validated configuration.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The effective options.
    pub config: Config,
    /// What was set, without defaults.
    values: BTreeMap<String, toml::Value>,
    /// Secrets in a configuration file that users outside its group can read.
    pub exposed: Vec<String>,
}

impl Loaded {
    /// Replaces administrators' passwords by hashes.
    pub fn seal_admins(&mut self, hashes: &BTreeMap<String, String>) {
        for (name, hash) in hashes {
            self.config.admins.replace(name, hash);
            if let Some(toml::Value::String(given)) = self.values.get_mut(&admin_path(name)) {
                given.zeroize();
                given.push_str(hash);
            }
        }
    }

    /// The options that differ from `other`. Contains no values.
    pub fn changed(&self, other: &Self) -> Vec<String> {
        let both = self.values.keys().chain(other.values.keys());
        let mut changed: Vec<String> = both
            .filter(|path| self.values.get(*path) != other.values.get(*path))
            .cloned()
            .collect();
        changed.sort();
        changed.dedup();
        changed
    }
}

impl Sources {
    /// Reads and validates everything. With any problem, nothing is used.
    pub fn load(&self) -> Result<Loaded, Refused> {
        let mut problems = Vec::new();
        let mut settings = match &self.file {
            Some(path) => file::read(path, &mut problems),
            None => Vec::new(),
        };
        let exposed = match &self.file {
            Some(path) => file::exposed(path, &settings),
            None => Vec::new(),
        };
        self.read_environment(&mut settings, &mut problems);
        for (flag, path, text) in &self.flags {
            override_with(Origin::Flag(flag), path, text, &mut settings, &mut problems);
        }
        settings.retain(|setting| match alone(setting) {
            Ok(()) => true,
            Err(what) => {
                let origin = setting.origin.clone();
                problems.push(Problem::new(origin, Some(&setting.path), what));
                false
            }
        });
        let mut values = BTreeMap::new();
        let mut origins = BTreeMap::new();
        for setting in settings {
            origins.insert(setting.path.clone(), setting.origin);
            values.insert(setting.path, setting.value);
        }
        let mut config: Config = match table(&values).try_into() {
            Ok(config) => config,
            Err(error) => {
                // Each setting is valid in itself.
                problems.push(Problem::new(Origin::Default, None, message(&error)));
                return Err(Refused(problems));
            }
        };
        for (origin, name, password) in self.more_admins(&mut problems) {
            let path = admin_path(&name);
            origins.insert(path.clone(), origin);
            values.insert(path, password.as_str().into());
            config.admins.0.insert(name, password);
        }
        let lookup = |name: &str| self.environment.get(name).cloned();
        config.node_types = config.node_types.with_environment(lookup);
        if let Some(roles) = &self.roles {
            config.node_types = NodeTypes::only(roles);
        }
        // A node without clients has nothing else to listen for.
        let listens = self.flags.iter().any(|(flag, ..)| *flag == "--listen");
        if listens && !config.node_types.api_frontend {
            config.metrics.listen = Some(config.http.listen.clone());
        }
        if problems.is_empty() {
            problems = config.problems(&origins);
        }
        if problems.is_empty() {
            Ok(Loaded {
                config,
                values,
                exposed,
            })
        } else {
            Err(Refused(problems))
        }
    }

    /// Administrators from their file, then those from flags.
    fn more_admins(&self, problems: &mut Vec<Problem>) -> Vec<(Origin, String, String)> {
        let mut admins = match &self.admin_file {
            Some(path) => file::admins(path, problems),
            None => Vec::new(),
        };
        let flags = self.admins.0.iter();
        admins.extend(flags.map(|(name, password)| {
            let origin = Origin::Flag("--admin");
            (origin, name.clone(), password.clone())
        }));
        admins
    }

    /// Replaces administrators' passwords by hashes, so that passwords are not kept until the next reload.
    pub fn seal_admins(&mut self, hashes: &BTreeMap<String, String>) {
        for (name, hash) in hashes {
            self.admins.replace(name, hash);
            let path = admin_path(name);
            let of_flags = (self.flags.iter_mut()).filter(|(_, set, _)| *set == path);
            let of_flags = of_flags.map(|(_, _, given)| given);
            let of_variables = (self.environment.iter_mut())
                .filter(|(variable, _)| option_of(variable).as_ref() == Some(&path));
            for given in of_flags.chain(of_variables.map(|(_, given)| given)) {
                given.zeroize();
                given.push_str(hash);
            }
        }
    }

    fn read_environment(&self, settings: &mut Vec<Setting>, problems: &mut Vec<Problem>) {
        for (name, text) in &self.environment {
            if !name.starts_with(PREFIX) || OTHERS.contains(&name.as_str()) {
                continue;
            }
            match option_of(name) {
                Some(path) => {
                    let origin = Origin::Variable(name.clone());
                    override_with(origin, &path, text, settings, problems);
                }
                None if is_service_link(name, text) => {}
                None => {
                    let known: Vec<String> = variables().map(|(name, _)| name).collect();
                    let hint = nearest(name, known.iter().map(String::as_str));
                    let what = format!("unknown option{hint}");
                    problems.push(Problem::new(Origin::Variable(name.clone()), None, what));
                }
            }
        }
    }
}

/// Kubernetes sets these variables if a service is named `davenport`.
fn is_service_link(name: &str, text: &str) -> bool {
    name.contains("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.contains("_PORT_")
        || (name.ends_with("_PORT") && text.contains("://"))
}

/// All variables with their options.
fn variables() -> impl Iterator<Item = (String, String)> {
    schema::sections().iter().flat_map(|section| {
        let keys = section.keys.iter();
        keys.map(|key| {
            let path = format!("{}.{}", section.name, key.name);
            (section.variable(&key.name), path)
        })
    })
}

/// The option that a variable sets.
fn option_of(variable: &str) -> Option<String> {
    if let Some((_, path)) = SHORT.iter().find(|(name, _)| *name == variable) {
        return Some((*path).to_owned());
    }
    let known = variables().find(|(name, _)| name == variable);
    known.map(|(_, path)| path).or_else(|| {
        let open = schema::sections().iter().filter(|section| section.open);
        let mut names = open.filter_map(|section| {
            let name = variable.strip_prefix(&section.variable(""))?;
            let usable = !name.is_empty();
            usable.then(|| format!("{}.{}", section.name, name.to_lowercase()))
        });
        names.next()
    })
}

/// Adds a setting given as text.
fn override_with(
    origin: Origin,
    path: &str,
    text: &str,
    settings: &mut Vec<Setting>,
    problems: &mut Vec<Problem>,
) {
    let parsed = if let Some(form) = schema::form(path) {
        value(form, text)
    } else {
        let section = path.rsplit_once('.');
        let section = section.map(|(section, key)| (schema::section(section), key));
        Err(match section {
            Some((Some(section), key)) => file::unknown(section, key),
            _ => "unknown option".to_owned(),
        })
    };
    match parsed {
        Ok(value) => settings.push(Setting {
            path: path.to_owned(),
            value,
            origin,
        }),
        Err(what) => problems.push(Problem::new(origin, Some(path), what)),
    }
}

/// Parses a value: strings need no quotes, and lists no brackets.
fn value(form: Form, text: &str) -> Result<toml::Value, String> {
    let toml = |text: &str| {
        let line = format!("value = {text}");
        let table: Option<toml::Table> = toml::from_str(&line).ok();
        table.and_then(|mut table| table.remove("value"))
    };
    match form {
        Form::Text => Ok(text.into()),
        Form::Boolean => toml(text).ok_or_else(|| "must be true or false".to_owned()),
        Form::Number => toml(text).ok_or_else(|| "must be a number".to_owned()),
        Form::Table => toml(text).ok_or_else(|| "must be a table in TOML".to_owned()),
        Form::List if text.trim_start().starts_with('[') => {
            toml(text).ok_or_else(|| "must be a list".to_owned())
        }
        Form::List => {
            let parts = text.split(',').map(str::trim);
            let parts = parts.filter(|part| !part.is_empty());
            Ok(parts.map(toml::Value::from).collect::<Vec<_>>().into())
        }
    }
}

/// Whether a setting is valid in itself.
fn alone(setting: &Setting) -> Result<(), String> {
    // Serde's errors would show the value.
    match setting.path.split('.').next() {
        Some("admins" | "jwt_keys") if !setting.value.is_str() => {
            return Err("must be a string".to_owned());
        }
        Some("secrets") if !setting.value.is_table() => return Err("must be a table".to_owned()),
        _ => {}
    }
    let only = [(setting.path.clone(), setting.value.clone())];
    let config: Result<Config, _> = table(&only.into()).try_into();
    config.map(drop).map_err(|error| message(&error))
}

fn admin_path(name: &str) -> String {
    format!("admins.{name}")
}

fn message(error: &toml::de::Error) -> String {
    error.message().trim().to_owned()
}

fn table(values: &BTreeMap<String, toml::Value>) -> toml::Table {
    let mut top = toml::Table::new();
    for (path, value) in values {
        // Everything after an open section's name is one name.
        let open = schema::sections().iter().find_map(|section| {
            let name = path.strip_prefix(&section.name)?.strip_prefix('.')?;
            section.open.then(|| vec![section.name.as_str(), name])
        });
        let parts = open.unwrap_or_else(|| path.split('.').collect());
        insert(&mut top, &parts, value);
    }
    top
}

fn insert(table: &mut toml::Table, parts: &[&str], value: &toml::Value) {
    let Some((first, rest)) = parts.split_first() else {
        return;
    };
    if rest.is_empty() {
        table.insert((*first).to_owned(), value.clone());
        return;
    }
    let inner = table
        .entry(*first)
        .or_insert_with(|| toml::Table::new().into());
    if let toml::Value::Table(inner) = inner {
        insert(inner, rest, value);
    }
}

#[cfg(test)]
mod tests;
