// One streamed chat completion: a request, server-sent events, errors in words. Knows nothing of the page.

export class RequestError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export async function firstModel(key) {
  const answer = await request("v1/models", { headers: headers(key) });
  const list = await answer.json();
  return list.data[0].id;
}

// Yields the chunks of one completion as the server sends them, until it says that it is done.
export async function* streamChat(body, { key, signal }) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new RequestError("The answer broke off: the server closed the connection.");
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new RequestError(chunk.error.message ?? "The server could not finish the answer.");
      yield chunk;
    }
  }
}

function headers(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function request(url, options) {
  let response;
  try {
    response = await fetch(url, { ...options, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("The server cannot be reached.");
  }
  if (!response.ok) throw new RequestError(await wordsOf(response), response.status);
  return response;
}

async function wordsOf(response) {
  if (response.status === 429) {
    const seconds = response.headers.get("Retry-After");
    return `The server is busy. Try again ${seconds ? `in ${seconds} s` : "in a while"}.`;
  }
  try {
    const { error } = await response.json();
    if (error?.message) return error.message;
  } catch {
    // Not an answer of ours: a proxy's page, perhaps. The status says enough.
  }
  return `The server answered ${response.status} ${response.statusText}.`;
}
