from twisted.application.service import ServiceMaker

kinmqtt = ServiceMaker("kinmqtt", "kinmqtt.tap", "A pluggable MQTT broker.", "kinmqtt")
