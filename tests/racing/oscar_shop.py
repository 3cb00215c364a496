"""`python -m tests.racing.oscar_shop BUYERS PIECES`: races the last button of django-oscar's own checkout.

It runs with django-oscar's interpreter and settings, which know nothing of this project but the race.
"""

import json
import sys

import django

django.setup()

from django.test import Client  # noqa: E402 - Django's apps come first
from oscar.core.loading import get_model  # noqa: E402

from examples.oscar.buyer import ADDRESS  # noqa: E402
from examples.oscar.stock import fill, sold  # noqa: E402
from inventory.racing import race  # noqa: E402
from inventory.racing.picture import as_text  # noqa: E402


def at_the_last_button(number: int) -> Client:
    """Return a customer with one piece in the basket, who has answered everything that the checkout asks."""
    client = Client(raise_request_exception=False, headers={"host": "127.0.0.1"})
    [product] = get_model("catalogue", "Product").objects.values_list("pk", flat=True)
    client.post(f"/basket/add/{product}/", {"quantity": 1})
    client.post("/checkout/", {"username": f"buyer{number}@example.com", "options": "anonymous"})
    client.post("/checkout/shipping-address/", ADDRESS)
    client.get("/checkout/shipping-method/")
    return client


def main(buyers: int, pieces: int) -> None:
    """Race, and print what came of it."""
    fill(pieces, 1)
    clients = [at_the_last_button(number) for number in range(buyers)]

    def press(buyer: int) -> bool:
        answer = clients[buyer].post("/checkout/preview/", {"action": "place_order"})
        return answer.status_code == 302 and "thank-you" in answer["Location"]

    result = race(press, buyers=buyers, stock=pieces)
    print(result, as_text(result), sep="\n", file=sys.stderr)
    shared = result.shared
    found = {"sold": result.sold, "too_many": result.too_many, "shared": str(shared[2]) if shared else ""}
    print(json.dumps(found | {"stock": sold()}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
