//! Framing of feeds of changes and of database updates.

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FeedKind {
    /// One JSON object with the existing rows.
    #[default]
    Normal,
    /// The same, but waits until there is a row.
    Longpoll,
    /// One row per line; ends after the time-out without a row.
    Continuous,
    /// The same as server-sent events, which some proxies pass on that buffer other streams.
    EventSource,
}

impl FeedKind {
    /// Reads the query parameter `feed`.
    pub fn parse(name: Option<&str>) -> Option<Self> {
        match name {
            None | Some("normal") => Some(Self::Normal),
            Some("longpoll") => Some(Self::Longpoll),
            Some("continuous" | "live") => Some(Self::Continuous),
            Some("eventsource") => Some(Self::EventSource),
            Some(_) => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Longpoll => "longpoll",
            Self::Continuous => "continuous",
            Self::EventSource => "eventsource",
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Self::EventSource => "text/event-stream",
            _ => "application/json",
        }
    }

    /// Whether the rows are in one JSON object, instead of an open-ended stream.
    pub fn is_object(self) -> bool {
        matches!(self, Self::Normal | Self::Longpoll)
    }

    /// What precedes the rows.
    pub fn head(self) -> &'static str {
        if self.is_object() {
            "{\"results\":[\n"
        } else {
            ""
        }
    }

    pub fn before_row(self, is_first: bool) -> &'static str {
        match self {
            Self::Normal | Self::Longpoll if !is_first => ",\r\n",
            Self::EventSource => "data: ",
            _ => "",
        }
    }

    /// `seq` is the row's sequence as JSON.
    pub fn after_row(self, seq: &str) -> String {
        match self {
            Self::Normal | Self::Longpoll => String::new(),
            Self::Continuous => "\n".to_owned(),
            Self::EventSource => format!("\nid: {seq}\n\n"),
        }
    }

    /// Sent while there are no rows, so that neither side considers the connection dead.
    pub fn heartbeat(self) -> &'static str {
        match self {
            Self::EventSource => "event: heartbeat\ndata: \n\n",
            _ => "\n",
        }
    }

    /// What follows the rows; `members` are those of the last object, such as `"last_seq":7`.
    pub fn end(self, members: &str) -> String {
        match self {
            Self::Normal | Self::Longpoll => format!("\n],\n{members}}}\n"),
            Self::Continuous => format!("{{{members}}}\n"),
            Self::EventSource => String::new(),
        }
    }
}
