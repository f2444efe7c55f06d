"""What is asked of a page of the console in its own language: controls, empty fields, whether it has changed."""

from __future__ import annotations

from playwright.sync_api import ElementHandle, Page

ALL = "scope => [...document.querySelectorAll(scope)].filter(each => each.checkVisibility() && !each.disabled)"
NAME = """each => [each.tagName, each.type ?? '', each.getAttribute('href') ?? each.dataset.key ?? '',
                  (each.ariaLabel ?? each.textContent).trim()].join('|')"""
FIND = f"scope => ({ALL})(scope).map({NAME})"
PRESS_IF_THERE = f"([scope, control]) => ({ALL})(scope).find(each => ({NAME})(each) === control)?.click()"
"""In one step: an earlier press may have the control drawn anew, or gone."""
STATE = """(() => [location.href, document.body.outerHTML, document.getElementById('dialog').open,
    ...[...document.querySelectorAll('input, select, details')].map(each => [each.value, each.checked, each.open])]
    .join('\\n'))()"""
UNREACHABLE = f"""scope => ({ALL})(scope).flatMap(each => {{
    const name = ({NAME})(each)
    each.focus()
    const isFocused = document.activeElement === each && each.tabIndex >= 0
    each.scrollIntoView({{block: 'center', inline: 'center'}})
    const {{left, right, top, bottom}} = each.getBoundingClientRect()
    const found = document.elementFromPoint((Math.max(left, 0) + Math.min(right, innerWidth)) / 2, (top + bottom) / 2)
    const isOnTop = each.contains(found) || [...each.labels ?? []].some(label => label.contains(found))
        || each.getClientRects().length > 1
    const isWhole = each.scrollWidth <= each.clientWidth + 1 || getComputedStyle(each).display === 'inline'
        || each.tagName === 'SELECT'
    return [
        [isFocused, 'no key reaches it'], [isOnTop, 'covered'], [isWhole, 'its words are cut'],
        [left > -1 && right < innerWidth + 1, 'beyond the edge'],
    ].filter(([isSo]) => !isSo).map(([, wrong]) => `${{name}}: ${{wrong}}`)
}})"""
"""What is wrong with the controls: no key reaches one, it is covered, cut, or beyond the window however one scrolls."""
REMEMBER = f"""() => {{
    document.getElementById('said').className = 'unseen'
    window.before = {STATE}
}}"""
"""Without what an earlier press said, whose end would be a change, too. It stays in the page: to compare it here, all
of the page would be sent again and again."""
HAS_CHANGED = f"() => window.before !== {STATE}"
EMPTY = """() => [...document.querySelectorAll('input')]
    .filter(each => each.value === '' && !each.disabled && !each.readOnly && each.checkVisibility())
    .map(each => each.ariaLabel ?? each.labels[0]?.textContent.trim())"""
OPEN = """route => {
    const pulse = document.getElementById('pulse')
    // A search is not refreshed.
    const isThere = () =>
        route.startsWith('search') ? document.querySelector('main table') : pulse.textContent.includes('as of')
    history.replaceState(null, '', `#/${route}`)
    pulse.replaceChildren()
    dispatchEvent(new HashChangeEvent('hashchange'))
    return new Promise(resolve => {
        const look = () => {
            if (!isThere()) return
            changes.disconnect()
            resolve()
        }
        const changes = new MutationObserver(look)
        changes.observe(document.body, {childList: true, subtree: true, characterData: true})
        look()
    })
}"""
"""Opens a page; done when its data is there."""
PAUSE = """document.querySelector('#pulse [aria-label="Pause refreshing"]')?.click()"""


def control_of(page: Page, control: str, scope: str) -> ElementHandle:
    """A control, and how the page is before it is pressed."""
    found = page.evaluate_handle(
        f"([scope, control]) => {{({REMEMBER})(); return ({ALL})(scope).find(each => ({NAME})(each) === control)}}",
        [scope, control],
    )
    visible = found.as_element()
    assert visible is not None, (control, page.evaluate(FIND, scope))
    return visible
