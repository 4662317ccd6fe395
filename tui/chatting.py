"""The chat with the engine: sending, following the answer, stopping it. A part of the app."""

from __future__ import annotations

from mini_infer.errors import UserError
from mini_infer.sampling.params import SamplingParams
from tui.controls import Controls
from tui.model.conversation import Conversation
from tui.model.lens import LENSES
from tui.views.chat import ChatView
from tui.widgets.composer import Composer


class Chatting(Controls):
    """The app as far as one talks with it."""

    chat: ChatView
    composer: Composer
    conversation = Conversation()

    def on_composer_sent(self, message: Composer.Sent) -> None:
        if self.conversation.is_busy:
            self.say("an answer is under way: Escape stops it", "warning")
            self.composer.text = message.text
            return
        self.conversation = self.conversation.ask(message.text)
        self.chat.set_pending(message.text)
        self.run_worker(self._send(), exit_on_error=False)

    async def _send(self) -> None:
        asked = self.conversation
        try:
            request_id = await self.client.chat(asked.prompt, SamplingParams(**self.sampling.given))  # type: ignore[arg-type]
        except UserError as error:
            if self.conversation is asked:
                self._give_back(str(error))
            return
        except Exception as error:  # loading failed, the engine is gone
            if self.conversation is asked:
                self._give_back(f"{type(error).__name__}: {error}")
            return
        if self.conversation is asked:
            self.conversation = asked.accepted(request_id)
        else:  # a new chat was begun meanwhile
            self.client.abort(request_id)

    def _give_back(self, why: str) -> None:
        """The message was not taken: it is in the field again."""
        text = self.conversation.asked or ""
        self.conversation = self.conversation.refused()
        self.chat.set_pending("")
        if not self.composer.text:
            self.composer.text = text
        self.say(why, "error")

    def chat_failed(self, why: str) -> None:
        """The engine is gone: nobody will answer."""
        if self.conversation.is_busy:
            self._give_back(why)

    def follow_chat(self) -> None:
        """After news: show the answer when it begins, and keep it when it ends."""
        request_id = self.conversation.request_id
        if self.observer is None or request_id is None:
            return
        record = self.observer.ledger.requests.get(request_id)
        if record is None:
            return
        if request_id not in self.observer.ledger.keep:
            self.observer.ledger.keep = {request_id}
            self.observer.select(request_id)
            self.chat.set_pending("")
        if record.ended_seq is not None:
            self.conversation = self.conversation.settled(record)
            if record.finished is not None and record.finished.reason == "error":
                self.say(f"the answer broke off: {record.finished.error}", "error")

    def stop_answer(self) -> bool:
        """Stop the answer under way; what there is of it stays. False where there is none."""
        conversation = self.conversation
        if not conversation.is_busy:
            return False
        if conversation.request_id is not None:
            self.client.abort(conversation.request_id)
        else:
            self._give_back("not sent")
        return True

    def action_stop(self) -> None:
        """Escape: stops the answer, else leaves the text field."""
        if not self.stop_answer():
            self.screen.set_focus(None)

    def action_new_chat(self) -> None:
        self.stop_answer()
        self.conversation = Conversation()
        self.chat.set_pending("")
        if self.observer is not None:
            self.observer.select(None)
        self.composer.focus()
        self.redraw()

    def set_lens(self, lens: str) -> None:
        self.chat.set_lens(lens)

    def action_lens(self) -> None:
        now = self.chat.lens
        self.set_lens(LENSES[(LENSES.index(now) + 1) % len(LENSES)])
