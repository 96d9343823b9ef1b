from twisted.application.service import ServiceMaker

kinmqtt = ServiceMaker("kinmqtt", "kinmqtt.cli.tap", "A pluggable MQTT broker.", "kinmqtt")
