"""Hand-over of a held lock to another process: `lease.ticket()` there, `adopt(ticket)` here.

A ticket is text that names a hold. Its giver stops renewing the lease and leaves it to whoever takes the
ticket, under the same owner and with the same fencing token. That must happen once: a message may be
delivered twice. So the taker also acquires a *claim*, a lock whose name is made of the owner. It is renewed
with the lease, never released, and lasts longer than the lease can: while the hold may live there is a claim.
"""

from __future__ import annotations
