"""``kinmqtt outbox``: lists, exports, drops and unparks the messages in outboxes while no broker has them.

The session and queue services of the settings are opened through the SPI, as a broker opens them, so any of them will
do. An outbox is claimed before it is changed: the stores refuse later writes of its earlier owner.
"""
