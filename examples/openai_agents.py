"""An agent of the OpenAI Agents SDK that has many tools, and a model that is sent the right ones of them.

Runs offline, since the model is scripted. For a real one: narrowed("gpt-5.5", scout, …).

    pip install toolscout 'openai-agents>=0.24,<0.25'
    python examples/openai_agents.py
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import office
from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from toolscout import Scout
from toolscout.integrations import Choice
from toolscout.integrations.openai_agents import narrowed

REQUEST = "We are nine people on Friday and need a meeting room for two hours."
FUNCTIONS = [value for name, value in vars(office).items() if getattr(value, "__module__", "") == "office"]


async def main() -> None:
    """Let the agent work on one request."""
    model = ScriptedModel(
        [
            [function_call("list_rooms", {"seats": 9}, call_id="1")],
            [function_call("book_room", {"room": "Attic", "day": "Friday", "hours": 2}, call_id="2")],
            [assistant_message("The attic is booked for Friday, two hours.")],
        ]
    )
    with tempfile.TemporaryDirectory() as folder, Scout.open(Path(folder) / "tools.db") as scout:
        agent = Agent(
            "office",
            tools=[function_tool(function) for function in FUNCTIONS],
            model=narrowed(model, scout, Choice(k=3)),
        )
        print(f"tools of the agent: {len(agent.tools)}")
        result = await Runner.run(agent, REQUEST, run_config=RunConfig(tracing_disabled=True))
        for sent in model.calls:
            print("tools sent:", ", ".join(tool.name for tool in sent.tools))
        for item in result.new_items:
            if item.type == "tool_call_output_item":
                print("tool:", item.output)
        print("ai:", result.final_output)


if __name__ == "__main__":
    asyncio.run(main())
