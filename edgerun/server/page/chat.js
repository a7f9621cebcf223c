// A conversation with the model of this server. Text of models becomes text nodes, never markup.

const $ = (id) => document.getElementById(id);
const STORE = "edgerun";
const NUMBERS = ["temperature", "max_tokens", "seed"];

const state = { messages: [], settings: {}, ...JSON.parse(sessionStorage.getItem(STORE) ?? "{}") };
let model = { id: "", context_length: 0 };
let running = null; // what ends the reply under way

function keep() {
  sessionStorage.setItem(STORE, JSON.stringify(state));
}

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function button(label, act) {
  const made = element("button", "", label);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

// A request; throws an error with one sentence.
async function call(path, options = {}) {
  const headers = { "Content-Type": "application/json" };
  if (state.settings.key) headers.Authorization = `Bearer ${state.settings.key}`;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer: is it still running?");
  }
  if (answer.ok) return answer;
  if (answer.status === 401) $("settings").showModal();
  const problem = await answer.json().catch(() => null);
  throw new Error(problem?.error?.message ?? `The server answered ${answer.status}.`);
}

// Events of a stream, as objects, until [DONE]; throws what an event says went wrong.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("The answer broke off.");
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.slice("data: ".length);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

// What a reply looks like: thoughts folded once an answer begins, code between ``` apart.
function shown({ content, reasoning_content: thoughts }) {
  const nodes = [];
  if (thoughts) {
    const details = element("details", "", element("summary", "", "Thoughts"));
    details.append(element("div", "", thoughts));
    details.open = !content;
    nodes.push(details);
  }
  content.split(/^```[^\n]*\n?/m).forEach((part, index) => {
    if (index % 2) nodes.push(element("pre", "", part.replace(/\n$/, "")));
    else if (part) nodes.push(element("div", "text", part));
  });
  return nodes;
}

// Scrolls along only if the end was in sight.
function follow(change) {
  const log = $("log");
  const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  const result = change();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
  return result;
}

function addMessage(message) {
  const isUser = message.role === "user";
  const parts = isUser ? [element("div", "text", message.content)] : shown(message);
  const body = element("div", "", ...parts);
  const made = element("article", `message ${message.role}`, body);
  follow(() => $("log").append(made));
  return { made, body };
}

function addNote(text, isAlert = false) {
  const note = element("p", isAlert ? "note alert" : "note", text);
  if (isAlert) note.role = "alert";
  follow(() => $("log").append(note));
}

// Below the last reply; earlier ones lose theirs.
function addFoot(made, figures = "") {
  document.querySelectorAll(".foot").forEach((foot) => foot.remove());
  const last = state.messages.at(-1);
  const foot = element("div", "foot", figures);
  foot.append(
    button("Copy", () => navigator.clipboard.writeText(last.content)),
    button("Again", () => {
      state.messages.pop();
      render();
      reply();
    }),
  );
  follow(() => made.append(foot));
}

function render() {
  $("log").replaceChildren();
  let last = null;
  for (const message of state.messages) last = addMessage(message);
  if (state.messages.at(-1)?.role === "assistant") addFoot(last.made);
  if (!state.messages.length) addNote("Nothing was said yet. Replies are computed on this machine.");
}

function setRunning(controller) {
  running = controller;
  $("stop").hidden = !controller;
  $("send").hidden = Boolean(controller);
  if (!controller) $("text").focus();
}

function requested() {
  const { system, key, ...numbers } = state.settings;
  const first = system ? [{ role: "system", content: system }] : [];
  return {
    messages: [...first, ...state.messages],
    stream: true,
    stream_options: { include_usage: true },
    ...numbers,
  };
}

const ENDS = {
  length: "The reply ends here: it has as many tokens as it may.",
  context: "The reply ends here: the context is full. A new chat has room.",
  memory: "The reply ends here: memory for it is full.",
};

// Reads a reply into its message, as it comes; returns its usage and why it ended.
async function read(answer, message, body) {
  let usage = null, end = "", since = 0;
  for await (const event of events(answer)) {
    since ||= performance.now();
    usage = event.usage ?? usage;
    const [choice] = event.choices;
    if (!choice) continue;
    message.content += choice.delta.content ?? "";
    if (choice.delta.reasoning_content) {
      message.reasoning_content = (message.reasoning_content ?? "") + choice.delta.reasoning_content;
    }
    end = choice.finish_detail ?? choice.finish_reason ?? end;
    follow(() => body.replaceChildren(...shown(message)));
  }
  return { usage, end, seconds: (performance.now() - since) / 1000 };
}

async function reply() {
  const controller = new AbortController();
  const messages = state.messages;
  const message = { role: "assistant", content: "" };
  const { made, body } = addMessage(message);
  setRunning(controller);
  let figures = "";
  try {
    const options = { method: "POST", body: JSON.stringify(requested()), signal: controller.signal };
    const answer = await call("v1/chat/completions", options);
    const { usage, end, seconds } = await read(answer, message, body);
    const tokens = usage.completion_tokens;
    figures = `${tokens} tokens, ${(tokens / Math.max(seconds, 1e-3)).toFixed(0)} a second`;
    $("fill").textContent = `${usage.total_tokens}/${model.context_length}`;
    if (ENDS[end]) addNote(ENDS[end]);
  } catch (error) {
    if (error.name !== "AbortError") addNote(error.message, true);
  } finally {
    setRunning(null);
  }
  if (state.messages !== messages) return; // a new chat began meanwhile
  if (message.content || message.reasoning_content) {
    messages.push(message);
    addFoot(made, figures);
  } else {
    made.remove();
  }
  keep();
}

function ask(event) {
  event.preventDefault();
  const content = $("text").value.trim();
  if (!content || running) return;
  // What was not answered is asked again together with this.
  if (state.messages.at(-1)?.role === "user") state.messages.at(-1).content += `\n\n${content}`;
  else state.messages.push({ role: "user", content });
  $("text").value = "";
  keep();
  render();
  reply();
}

function clear() {
  running?.abort();
  state.messages = [];
  $("fill").textContent = "";
  keep();
  render();
}

function readSettings() {
  const fields = $("settings").querySelector("form").elements;
  const settings = {};
  for (const name of ["system", "key"]) if (fields[name].value) settings[name] = fields[name].value;
  for (const name of NUMBERS) if (fields[name].value) settings[name] = Number(fields[name].value);
  state.settings = settings;
  keep();
  describe();
}

function showSettings() {
  const fields = $("settings").querySelector("form").elements;
  for (const name of ["system", "key", ...NUMBERS]) fields[name].value = state.settings[name] ?? "";
  $("settings").showModal();
}

async function describe() {
  try {
    model = (await (await call("v1/models")).json()).data[0];
    $("model").textContent = model.id;
    document.title = model.id;
  } catch (error) {
    addNote(error.message, true);
  }
}

$("ask").addEventListener("submit", ask);
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", clear);
$("settings-open").addEventListener("click", showSettings);
$("settings").addEventListener("close", readSettings);
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) ask(event);
});
render();
describe();
