use tokio::net::TcpListener;

use super::*;

/// A request fails after others have moved on to a server that answers.
#[tokio::test]
async fn a_late_failure_does_not_change_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let slow = format!("http://{}", listener.local_addr().unwrap());
    let client = Client::with(&[&slow, "http://127.0.0.1:1", "http://127.0.0.1:2"], None).unwrap();
    let late = async {
        let (stream, _) = listener.accept().await.unwrap();
        client.at.store(2, Ordering::Relaxed);
        drop(stream);
        // The next try is with the third server.
        while client.at.load(Ordering::Relaxed) == 2 {
            tokio::task::yield_now().await;
        }
        assert_eq!(client.at.load(Ordering::Relaxed), 3);
    };
    tokio::select! {
        () = late => {}
        _ = client.types() => panic!("it was not tried again"),
    }
}
