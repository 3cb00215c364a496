"""`make loadtest`: the served shop under load and faults, and an auditor that relies on no report.

servers.py    a PostgreSQL and a Redis of its own, which may be killed and flushed
shop.py       the web server on them, by the command of `make serve`
delivery.py   products and their stock
schedule.py   when each buyer comes, decided before the first one does
wire.py       one connection to the shop, with as little Python as will do
journal.py    what each buyer asked for and heard, on disk before anything else happens
buyers.py     processes of buyers who come by the schedule, not when the shop is ready
faults.py     what is done to the servers in mid-run
audit.py      journal against SQL
lesson.py     the lab's own checkout under each sound lesson
run.py        one strategy from the delivery to the audit
crowd.py      locust, headless, with locustfile.py
report.py     figures as JSON, and one HTML page
"""
