"""The pages: a list of each item type, and each item."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import ngettext

from paceline.dispatch.changes import ResolvedAs
from paceline.dispatch.status import Status
from paceline.errors import NotFound, PacelineError
from paceline.integrations.django_admin.models import QueueItem
from paceline.integrations.django_admin.queue import open_queue

PAGE = 100
ACTIONS = {"requeue": "requeued", "discard": "discarded"}


@admin.register(QueueItem)
class QueueItemAdmin(admin.ModelAdmin):  # type: ignore[misc]  # Django publishes no types
    """Reads and changes the queue through `BlockingDispatchQueue`: with its checks and its audit."""

    def get_urls(self) -> list[Any]:
        """The pages' addresses."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="paceline_queueitem_changelist"),
            path("<str:item_type>/<path:item_id>/", view(self.item_view), name="paceline_queueitem_item"),
        ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Items are queued by programs."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """`paceline prune` deletes what has ended."""
        return False

    def changelist_view(self, request: HttpRequest, extra_context: object = None) -> HttpResponse:
        """All item types with the number of items in each status; of one type, the items of a status."""
        self._check(request, "view")
        queue = open_queue()
        item_type, status = request.GET.get("type"), request.GET.get("status", Status.DEAD_LETTER.value)
        try:
            if request.method == "POST" and item_type:
                self._act(request, item_type, request.POST.getlist("id"))
                return HttpResponseRedirect(request.get_full_path())
            types = [(config, queue.stats(config.item_type)) for config in queue.configs()]
            after = request.GET.get("after")
            items = [] if item_type is None else queue.list(item_type, status, limit=PAGE, after=after)
        except NotFound as error:
            raise Http404(str(error)) from error
        shown = {
            "title": "Queue" if item_type is None else f"{item_type}: {status}",
            "types": [(config, [(each, stats.depth.get(each, 0)) for each in Status]) for config, stats in types],
            "statuses": [each.value for each in Status if each is not Status.FAILED],
            "item_type": item_type,
            "status": status,
            "items": items,
            "next": items[-1].item_id if len(items) == PAGE else None,
            "can_act": status == Status.DEAD_LETTER and self.has_change_permission(request),
        }
        return self._page(request, "queue", shown)

    def item_view(self, request: HttpRequest, item_type: str, item_id: str) -> HttpResponse:
        """One item: where it stands, its attempts, what happened to it."""
        self._check(request, "view")
        try:
            if request.method == "POST":
                self._act(request, item_type, [item_id])
                return HttpResponseRedirect(reverse("admin:paceline_queueitem_item", args=[item_type, item_id]))
            detail = open_queue().show(item_type, item_id)
        except NotFound as error:
            raise Http404(str(error)) from error
        shown = {
            "title": item_id,
            "item": detail.item,
            "detail": detail,
            "outcomes": [outcome.value for outcome in ResolvedAs],
            "is_dead": detail.item.status is Status.DEAD_LETTER,
            "can_act": self.has_change_permission(request),
        }
        return self._page(request, "item", shown)

    def _act(self, request: HttpRequest, item_type: str, ids: list[str]) -> None:
        """Does what a form asks for; what can't be done is said on the next page, and changes nothing."""
        self._check(request, "change")
        if not ids:
            messages.warning(request, "Mark at least one item.")
            return
        queue, action = open_queue(), request.POST.get("action")
        try:
            if action == "requeue":
                count = queue.requeue(item_type, ids)
            elif action == "discard":
                count = queue.discard(item_type, ids)
            elif action == "resolve":
                reason = request.POST.get("reason", "").strip()
                count = queue.resolve(item_type, ids, request.POST.get("outcome", ""), reason=reason or None)
            else:
                messages.error(request, f"{action!r} is unknown; use requeue, discard or resolve.")
                return
        except PacelineError as error:
            messages.error(request, str(error))
            return
        for item_id in ids:
            self.log_change(request, QueueItem(name=f"{item_type}/{item_id}"), f"{action} {item_type}/{item_id}")
        done = ACTIONS.get(action, "resolved")
        messages.success(request, ngettext("%d item was %s.", "%d items were %s.", count) % (count, done))

    def _check(self, request: HttpRequest, permission: str) -> None:
        if not getattr(self, f"has_{permission}_permission")(request):
            raise PermissionDenied

    def _page(self, request: HttpRequest, name: str, shown: dict[str, Any]) -> HttpResponse:
        context = {**self.admin_site.each_context(request), "opts": self.opts, **shown}
        return TemplateResponse(request, f"admin/paceline/{name}.html", context)
