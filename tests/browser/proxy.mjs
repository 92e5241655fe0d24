// A proxy in front of the service. `answer` may handle a request itself: it returns whether it does.

import http from "node:http";

export async function serveProxy(service, answer) {
  const server = http.createServer((request, response) => {
    if (answer(request, response)) return;
    const { hostname, port } = new URL(service.url);
    const forwarded = http.request({ hostname, port, method: request.method, path: request.url, headers: request.headers }, (reply) => {
      response.writeHead(reply.statusCode, reply.headers);
      reply.pipe(response);
    });
    forwarded.on("error", () => response.destroy());
    request.pipe(forwarded);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${server.address().port}/`, stop: () => { server.closeAllConnections(); server.close(); } };
}
