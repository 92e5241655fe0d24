// What to do about an error of a replication. The first pattern that matches its error or reason decides.

const HINTS = [
  [/duplicate|already (started|running)/i,
    "Another replication does the same work. Delete one of them; this one starts when the other is gone."],
  [/unauthorized|forbidden|auth_error|session_request/i,
    "Check the user and password of this endpoint. The user must be able to read the source or write to the target."],
  [/db_not_found|could not open/i,
    "Create the database on that server. If it is the target, you can set create_target instead."],
  [/nxdomain|could not resolve/i,
    "Check the host name in the URL and the DNS settings of the replication nodes."],
  [/filter_fetch_error/i,
    "Check that the design document and its filter function exist on the source."],
  [/tls|certificate|unknown_ca|hostname/i,
    "Check the server's certificate and host name. Replication nodes must trust its certificate authority."],
  [/max_backoff|429/i,
    "The server is limiting requests. Run fewer replications against it or raise its limit."],
  [/egress|denied|not allowed/i,
    "The service may not connect to this address. An administrator can allow it in network.egress.allow."],
  [/no_progress/i,
    "The source reports pending changes but sends none. Look for a proxy that buffers responses."],
  [/checkpoint|out of sync/i,
    "A database was recreated, or the user cannot write _local documents. Check both, then restart the replication."],
  [/doc_write_failed/i,
    "The target rejects a document. Correct the document, or set on_write_failure to skip."],
  [/timeout|refused|unreachable|connect|50\d/i,
    "The server does not respond properly. Check the server; the job is retried automatically."],
  [/field|must be|invalid|exclusive|endpoint/i,
    "This is not a valid replication document. Correct the document to start a new job."],
];

export const hint = (error, reason) => HINTS.find(([pattern]) => pattern.test(`${error} ${reason}`))?.[1] ?? "";
