// The conversation: what was said, what is being said, and the controls.

import { Gauge, figure } from "./gauge.js";
import { firstModel, streamChat } from "./stream.js";

const $ = (id) => document.getElementById(id);
const fields = { message: $("message"), key: $("key"), seed: $("seed"), maxTokens: $("max-tokens"), temperature: $("temperature") };
const gauge = new Gauge({ speed: $("speed"), acceptance: $("acceptance"), wake: $("wake") });

let model = null;
let chat = { messages: [] }; // a new one for every conversation, so that an answer to an old one finds no place here
let running = null; // the AbortController of the answer that is coming

// --- one answer

// Runs one request. `onTokens` gets its tokens as {text, drafted} chunk by chunk; the result says what came of it.
async function run(request, onTokens) {
  running = new AbortController();
  busy(true);
  gauge.start();
  const result = { text: "", ids: [], finish: null, stopped: false };
  try {
    model ??= await firstModel(fields.key.value);
    $("model").textContent = model;
    const body = { ...request, model };
    for await (const chunk of streamChat(body, { key: fields.key.value, signal: running.signal })) {
      const choice = chunk.choices?.[0];
      if (choice) {
        const tokens = tokensOf(choice);
        result.text += tokens.map((token) => token.text).join("");
        result.ids.push(...tokens.map((token) => token.id));
        result.finish = choice.finish_reason ?? result.finish;
        gauge.add(tokens.map((token) => token.drafted));
        onTokens(tokens);
      }
      const report = chunk.speculative_decoding ?? choice?.speculative_decoding;
      if (report) gauge.settle(report);
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    result.stopped = true;
  } finally {
    running = null;
    busy(false);
  }
  return { ...result, tokens: gauge.tokens, speed: gauge.tokensPerSecond, acceptance: gauge.meanAcceptanceLength };
}

// A server that does not tell tokens apart is taken to send one a chunk.
function tokensOf(choice) {
  if (choice.tokens) return choice.tokens.map(({ text, id, from_draft }) => ({ text, id, drafted: from_draft }));
  const text = choice.delta?.content;
  return text ? [{ text, id: null, drafted: false }] : [];
}

function requestFor(conversation, { seed, speculation }) {
  return {
    messages: conversation,
    temperature: fields.temperature.valueAsNumber,
    max_tokens: fields.maxTokens.valueAsNumber,
    seed,
    speculative: speculation ? { report: true } : { report: true, num_speculative_tokens: 0 },
  };
}

async function ask(text) {
  const seed = fields.seed.value ? Number(fields.seed.value) : Math.floor(Math.random() * 2 ** 31);
  const mine = chat;
  const conversation = [...mine.messages, { role: "user", content: text }];
  const speculation = $("speculation").checked;
  const request = requestFor(conversation, { seed, speculation });
  const question = turn("question", "You");
  question.words.textContent = text;
  const answer = turn("answer", model ?? "Answer");
  answer.element.setAttribute("aria-busy", "true");
  $("welcome").hidden = true;
  $("log").append(question.element, answer.element);
  question.element.scrollIntoView({ block: "start" });
  const speaker = new Speaker();
  try {
    const result = await run(request, (tokens) => {
      const following = atTheEnd();
      tokens.forEach((token) => write(answer.words, token));
      speaker.say(tokens);
      if (following) toTheEnd();
    });
    answer.heading.textContent = model;
    if (result.text) mine.messages = [...conversation, { role: "assistant", content: result.text }];
    answer.element.append(figuresOf(result, request, speculation));
    if (result.stopped) speaker.note("Stopped.");
    toTheEnd();
  } catch (error) {
    // Nothing that failed stays in the conversation, and nothing that was typed is lost.
    question.element.remove();
    answer.element.remove();
    $("welcome").hidden = chat.messages.length > 0;
    if (!fields.message.value) fields.message.value = text;
    complain(error);
  } finally {
    answer.element.setAttribute("aria-busy", "false");
    speaker.finish();
    grow();
  }
}

function turn(kind, name) {
  const element = document.createElement("article");
  const heading = document.createElement("h3");
  const words = document.createElement("div");
  element.className = `turn ${kind}`;
  heading.textContent = name;
  words.className = "words";
  element.append(heading, words);
  return { element, heading, words };
}

// Neighbours of one kind share an element, so that a tint has no seams.
function write(words, { text, drafted }) {
  if (!text) return;
  const last = words.lastElementChild;
  if (last && last.classList.contains("drafted") === drafted) {
    last.append(text);
    return;
  }
  const element = document.createElement("span");
  element.textContent = text;
  if (drafted) element.className = "drafted";
  words.append(element);
}

function figuresOf(result, request, speculation) {
  const line = document.createElement("div");
  line.className = "figures";
  const say = (text) => line.append(Object.assign(document.createElement("span"), { textContent: text }));
  say(`${result.tokens} token${result.tokens === 1 ? "" : "s"}`);
  if (result.speed !== null) say(`${figure(result.speed, 1)} a second`);
  if (speculation && result.acceptance !== null) say(`${figure(result.acceptance, 2)} a pass`);
  if (!speculation) say("speculation off");
  say(`seed ${request.seed}`);
  if (result.finish === "length") say("cut at the longest answer");
  if (result.stopped) say("stopped");
  else line.append(checkOf(line, result, request, speculation));
  return line;
}

// The promise, tried: the same request with speculation the other way round.
function checkOf(line, result, request, speculation) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = `Ask again with speculation ${speculation ? "off" : "on"}`;
  button.addEventListener("click", async () => {
    if (running) return;
    const verdict = document.createElement("p");
    const show = (strong, rest) =>
      verdict.replaceChildren(Object.assign(document.createElement("b"), { textContent: strong }), rest);
    verdict.className = "check";
    verdict.setAttribute("role", "status");
    button.replaceWith(verdict);
    let count = 0;
    const other = { ...request, speculative: { report: true, ...(speculation ? { num_speculative_tokens: 0 } : {}) } };
    try {
      const again = await run(other, (tokens) => {
        count += tokens.length;
        verdict.textContent = `Asking again: ${count} of ${result.tokens} tokens`;
      });
      if (again.stopped) {
        verdict.replaceWith(button);
        return;
      }
      const same = again.text === result.text && again.ids.join() === result.ids.join();
      const [on, off] = speculation ? [result, again] : [again, result];
      const speeds = `${figure(on.speed, 1)} tokens a second with speculation, ${figure(off.speed, 1)} without.`;
      verdict.classList.toggle("differs", !same);
      show(same ? "The same, token for token. " : "Not the same text. ", speeds);
    } catch (error) {
      verdict.replaceWith(button);
      complain(error);
    }
  });
  return button;
}

// Reads the answer to those who listen: whole sentences, as they are finished, never single tokens.
class Speaker {
  constructor() {
    this.pending = "";
    $("announcer").replaceChildren();
  }

  say(tokens) {
    this.pending += tokens.map((token) => token.text).join("");
    const end = Math.max(...[". ", "? ", "! ", "\n"].map((mark) => this.pending.lastIndexOf(mark) + 1));
    if (end > 0) {
      this.note(this.pending.slice(0, end));
      this.pending = this.pending.slice(end);
    }
  }

  finish() {
    this.note(this.pending);
    this.pending = "";
  }

  note(text) {
    if (text.trim()) $("announcer").append(Object.assign(document.createElement("p"), { textContent: text.trim() }));
  }
}

// --- the page around it

function busy(on) {
  $("send").hidden = on;
  $("stop").hidden = !on;
  for (const button of document.querySelectorAll(".figures button")) button.disabled = on;
}

function complain(error) {
  const needsKey = error.status === 401;
  if (needsKey) $("key-row").hidden = false;
  const words = needsKey ? (fields.key.value ? "The server does not take this key." : "This server asks for a key.") : error.message;
  $("trouble").textContent = words;
  (needsKey ? fields.key : fields.message).focus();
  if (needsKey) fields.key.select();
}

const atTheEnd = () => window.innerHeight + window.scrollY >= document.documentElement.scrollHeight - 80;
const toTheEnd = () => window.scrollTo(0, document.documentElement.scrollHeight);

function grow() {
  fields.message.style.height = "auto";
  fields.message.style.height = `${fields.message.scrollHeight}px`;
}

function send() {
  const text = fields.message.value.trim();
  if (!text && !$("key-row").hidden) meet();
  if (!text || running) return;
  if (!$("settings").checkValidity()) {
    openSettings(true);
    $("settings").reportValidity();
    return;
  }
  $("trouble").textContent = "";
  fields.message.value = "";
  grow();
  ask(text);
}

function openSettings(open) {
  $("settings").classList.toggle("open", open);
  $("settings-button").setAttribute("aria-expanded", String(open));
}

function newChat() {
  running?.abort();
  chat = { messages: [] };
  $("log").replaceChildren();
  $("announcer").replaceChildren();
  $("trouble").textContent = "";
  $("welcome").hidden = false;
  gauge.start();
  fields.message.focus();
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
$("settings").addEventListener("submit", (event) => event.preventDefault());
fields.message.addEventListener("input", grow);
fields.message.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
$("stop").addEventListener("click", () => {
  running?.abort();
  fields.message.focus();
});
$("new-chat").addEventListener("click", newChat);
$("settings-button").addEventListener("click", () => openSettings(!$("settings").classList.contains("open")));
fields.temperature.addEventListener("input", () => {
  $("temperature-value").textContent = figure(fields.temperature.valueAsNumber, 1);
});
$("suggestions").addEventListener("click", (event) => {
  if (event.target.tagName !== "BUTTON") return;
  fields.message.value = event.target.textContent;
  fields.message.focus();
  send();
});

// Asks the server who it is, which also shows whether it wants a key.
async function meet() {
  try {
    model = await firstModel(fields.key.value);
    $("model").textContent = model;
    $("trouble").textContent = "";
    $("key-row").hidden = true;
    fields.message.focus();
  } catch (error) {
    complain(error);
  }
}

meet();
