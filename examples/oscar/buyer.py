"""One anonymous customer of the shop, over HTTP: basket, address, and as far as the last button."""

import http.cookiejar
import urllib.error
import urllib.parse
import urllib.request

ADDRESS = {
    "first_name": "Ada", "last_name": "L", "line1": "Main Street 1", "line4": "Berlin", "postcode": "10115",
    "country": "DE",
}  # fmt: skip


class Buyer:
    """A browser with its cookies."""

    def __init__(self, shop: str, number: int) -> None:
        self.shop, self.number = shop, number
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self.open = urllib.request.build_opener(cookies).open

    def get(self, path: str) -> str:
        """Return where a page leads in the end."""
        with self.open(self.shop + path, timeout=120) as page:
            page.read()
            return str(urllib.parse.urlsplit(page.url).path)

    def post(self, path: str, **fields: object) -> str:
        """Send a form; return where it leads, or 409."""
        try:
            with self.open(self.shop + path, urllib.parse.urlencode(fields).encode(), timeout=120) as page:
                page.read()
                return str(urllib.parse.urlsplit(page.url).path)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
            return "409"

    def go_to_the_last_button(self, *products: int) -> None:
        """Fill a basket and answer everything that the checkout asks."""
        self.get("/")
        for product in products:
            self.post(f"/basket/add/{product}/", quantity=1)
        self.get("/checkout/")
        self.post("/checkout/", username=f"buyer{self.number}@example.com", options="anonymous")
        self.post("/checkout/shipping-address/", **ADDRESS)
        self.get("/checkout/shipping-method/")
        where = self.get("/checkout/preview/")
        assert where == "/checkout/preview/", where

    def place_the_order(self) -> bool:
        """Press it; whether there is an order."""
        return self.post("/checkout/preview/", action="place_order").startswith("/checkout/thank-you")
