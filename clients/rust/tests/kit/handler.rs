#[derive(serde::Serialize, serde::Deserialize)]
struct Copy {
    files: u32,
    copied: u32,
}

/// Has a run of its own for each file, and fails after the second.
async fn handle(mut task: Task<Copy>) -> Result<Finish, Failure> {
    if !task.id.to_string().starts_with("holiday") {
        return Err(Failure::Dead(format!("{} is no folder", task.id)));
    }
    let left = task.data.files.checked_sub(task.data.copied).ok_or(std::fmt::Error)?;
    if left == 0 || task.superseded() {
        return Ok(Finish::done());
    }
    task.data.copied += 1;
    let held = task.save().await?;
    assert!(!held.again);
    if left == 2 && task.failures == 0 {
        return Err(Failure::Retry("the disk is full".into()));
    }
    Ok(if left == 1 { Finish::again(0) } else { task.again_in(Duration::from_millis(1)) })
}

fn options() -> WorkerOptions {
    WorkerOptions { concurrency: 2, drain: Duration::from_secs(5), ..WorkerOptions::default() }
}
